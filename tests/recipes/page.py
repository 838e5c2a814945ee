"""The code blocks of a Markdown page, and the shell commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)#.*$")
_FILE_NAME = re.compile(r"# ([\w/]+\.(?:py|yaml))")
_ASSIGNMENT = re.compile(r"[A-Z][A-Z0-9_]*=")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block."""

    language: str
    text: str
    place: str

    @property
    def file_name(self) -> str | None:
        """The file this block is, if its first line is a comment that says so."""
        found = _FILE_NAME.fullmatch(self.text.partition("\n")[0])
        return found[1] if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One shell command, with what a page says about it."""

    words: tuple[str, ...]
    place: str
    variables: tuple[tuple[str, str], ...] = ()
    stdin: str = ""
    output: str | None = None
    is_refused: bool = False


def read_blocks(path: Path) -> list[Block]:
    """Return the blocks of a page in order."""
    page = path.read_text(encoding="utf-8")
    return [
        Block(language=found[1], text=found[2], place=f"{path.name}:{page.count(chr(10), 0, found.start()) + 1}")
        for found in _FENCE.finditer(page)
    ]


def read_commands(block: Block) -> list[Command]:
    """Return the commands of a ``bash`` block; a comment with ``exit 2`` says that the command is refused."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [_command(line, place=block.place) for line in lines if _COMMENT.sub("", line).strip()]


def without_comments(block: Block) -> list[str]:
    """Return the lines of a block without comments and blank lines, to compare two languages."""
    lines = (_COMMENT.sub("", line).rstrip() for line in block.text.splitlines())
    return [line for line in lines if line]


def _command(line: str, *, place: str) -> Command:
    bare = _COMMENT.sub("", line)
    before, pipe, after = bare.rpartition(" | ")
    stdin = " ".join(shlex.split(before)[1:]) + "\n" if pipe else ""
    assert not pipe or shlex.split(before)[0] == "echo", f"{place}: only echo may feed a command here"
    words = shlex.split(after if pipe else bare)
    output = None
    if ">" in words:
        output = words[words.index(">") + 1]
        words = words[: words.index(">")]
    count = next((index for index, word in enumerate(words) if not _ASSIGNMENT.match(word)), 0)
    variables = tuple((name, value) for name, _, value in (word.partition("=") for word in words[:count]))
    return Command(
        words=tuple(words[count:]),
        place=place,
        variables=variables,
        stdin=stdin,
        output=output,
        is_refused="exit 2" in line,
    )
