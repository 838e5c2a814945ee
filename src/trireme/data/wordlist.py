"""A user's dictionary: words that must stay whole, in the forms people have them."""

from __future__ import annotations

import re
from pathlib import Path

from trireme.data.encoding import decode_text
from trireme.errors import DataError
from trireme.words import say

_TAG = re.compile(r"[A-Za-z]{1,8}")
_OTHER_FORM = re.compile(r".+[/,，;|:_](?:[a-z]{1,4}|\d+)")
"""``word/n`` and ``word,500``: taken as they stand they would never be met in a text."""
_NUMBER = re.compile(r"\d+(\.\d+)?")


class WordList(tuple[str, ...]):
    """The words of a dictionary, each once, in its order, with what was passed over."""

    path: Path
    num_blank: int
    num_repeated: int

    def __new__(cls, words: list[str], *, path: Path, num_blank: int = 0) -> WordList:
        """Keep the first of each word."""
        unique = dict.fromkeys(words)
        found = super().__new__(cls, unique)
        found.path = path
        found.num_blank = num_blank
        found.num_repeated = len(words) - len(unique)
        return found

    def summary(self) -> str:
        """Return one sentence: how many words, how many lines were repeated or blank."""
        counts = {"words": len(self), "repeated": self.num_repeated, "blank": self.num_blank}
        return say("data.words_loaded", path=self.path, **counts)


def load_words(path: str | Path) -> WordList:
    """Return the words of a dictionary file.

    A line is ``word``, or a word with its frequency, its part of speech or both (jieba's form), apart by tabs or
    blanks, in either order. Frequency and part of speech are not used.

    Raises:
        DataError: The file can't be read, is no UTF-8, or has a line of another form.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError("data.cannot_read", path=path, reason=error.strerror or error) from error
    lines = decode_text(raw, encoding="utf-8", path=path, offset=0).splitlines()
    words = [_word(line, where=f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not words:
        raise DataError("data.words_empty", path=path)
    return WordList(words, path=path, num_blank=len(lines) - len(words))


def _word(line: str, *, where: str) -> str:
    word, *rest = line.split()
    numbers = [part for part in rest if _NUMBER.fullmatch(part)]
    tags = [part for part in rest if _TAG.fullmatch(part)]
    known = len(numbers) <= 1 and len(tags) <= 1 and len(numbers) + len(tags) == len(rest)
    if not known or (not rest and _OTHER_FORM.fullmatch(word)):
        raise DataError("data.bad_word_line", where=where, line=line.strip())
    return word
