"""The catalogue: every sentence in both languages, every key that is said exists, every key is said."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import string
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import trireme.words
from trireme.words import Text

PAGES = sorted(name for _, name, _ in pkgutil.iter_modules(trireme.words.__path__) if name != "catalogue")


def texts(page: str) -> dict[str, Text]:
    found: dict[str, Text] = importlib.import_module(f"trireme.words.{page}").TEXTS
    return found


def all_keys() -> set[str]:
    return {f"{page}.{name}" for page in PAGES for name in texts(page)}


@pytest.mark.parametrize("page", PAGES)
def test_both_languages_fill_in_the_same_values(page: str) -> None:
    for name, text in texts(page).items():
        assert _placeholders(text.en) == _placeholders(text.zh), f"{page}.{name}"


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_is_empty_or_left_untranslated(page: str) -> None:
    for name, text in texts(page).items():
        assert text.en.strip(), f"{page}.{name}"
        assert text.zh.strip(), f"{page}.{name}"
        words = [word for word in _without_placeholders(text.en).split() if len(word) > 3 and word.isalpha()]
        if len(words) >= 3:
            assert any("\u4e00" <= letter <= "\u9fff" for letter in text.zh), f"{page}.{name} has no Chinese"


def test_every_key_that_the_program_says_exists(repository: Path) -> None:
    missing = {f"{place}: {key}" for place, key in _said(repository) if key not in all_keys()}
    assert not missing, "\n".join(sorted(missing))


def test_every_sentence_is_said_somewhere(repository: Path) -> None:
    said = {key for _, key in _said(repository)}
    rooms = _rooms(repository)
    unsaid = [key for key in sorted(all_keys() - said) if not any(room.puts_together(key) for room in rooms)]
    assert not unsaid, "\n".join(unsaid)


def _placeholders(sentence: str) -> set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(sentence) if field is not None}


def _without_placeholders(sentence: str) -> str:
    return " ".join(text for text, _, _, _ in string.Formatter().parse(sentence))


def _modules(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((repository / "src" / "trireme").rglob("*.py")):
        if "words" not in path.parts:
            yield str(path.relative_to(repository)), ast.parse(path.read_text(encoding="utf-8"))


def _said(repository: Path) -> Iterator[tuple[str, str]]:
    """Yield each text with the form of a key that stands in a module: said at once, or kept to be said."""
    pages = set(PAGES)
    for place, tree in _modules(repository):
        called = {
            id(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and _says(node) and node.args
        }
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
                continue
            page, dot, name = node.value.partition(".")
            is_key = bool(dot) and page in pages and name.isidentifier() and name.islower()
            if id(node) in called or (is_key and node.value in all_keys()):
                yield f"{place}:{node.lineno}", node.value


def _says(call: ast.Call) -> bool:
    """``say("page.key")`` or ``SomeError("page.key")`` of the tree in errors.py."""
    import trireme.errors

    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    kind = getattr(trireme.errors, name, None)
    return name == "say" or (isinstance(kind, type) and issubclass(kind, trireme.errors.TriremeError))


@dataclass(slots=True)
class Room:
    """What a room may put together at run time: ``f"cli.verb_{name}"``, ``"config." + name``."""

    texts: set[str] = field(default_factory=set)
    beginnings: set[str] = field(default_factory=set)

    def puts_together(self, key: str) -> bool:
        """Whether the key is a beginning and a name of this room; ``page.verb_`` stands for all that follow."""
        for start in self.beginnings:
            page, _, stem = start.partition(".")
            if page in PAGES and key.startswith(start):
                rest = key.removeprefix(start)
                if stem or rest in self.texts or any(rest.removeprefix(part) in self.texts for part in self.beginnings):
                    return True
        return False


def _rooms(repository: Path) -> list[Room]:
    rooms: dict[str, Room] = {}
    for place, tree in _modules(repository):
        room = rooms.setdefault(place.split("/")[2], Room())
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                room.texts.add(node.value)
            elif isinstance(node, ast.JoinedStr):
                room.beginnings |= {part.value for part in node.values[:1] if isinstance(part, ast.Constant)}
            elif isinstance(node, ast.BinOp) and isinstance(node.left, ast.Constant):
                room.beginnings |= {node.left.value} if isinstance(node.left.value, str) else set()
    return list(rooms.values())
