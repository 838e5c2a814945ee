"""Bytes to text, and what to tell a user whose file is in another encoding than said."""

from __future__ import annotations

import codecs
from pathlib import Path

from trireme.errors import DataError

_TRIED = ("utf-8", "gb18030", "big5", "utf-16")
_SAMPLE_BYTES = 1 << 18
_FREQUENT = frozenset("的一是不了在人有我他这這个個们們来來到时時大地为為子中你说說生国國年着著就那和要，。、：“”")
_WIDE = ("utf-16", "utf-32")


def check_encoding(name: str) -> None:
    """Raise DataError when Python knows no such encoding of text."""
    try:
        "".encode(name)
    except (LookupError, ValueError) as error:  # ValueError: a name with a NUL
        raise DataError("data.unknown_encoding", encoding=name) from error


def decode_text(raw: bytes, *, encoding: str, path: Path, offset: int, around: bytes = b"") -> str:
    """Return ``raw`` as text; ``offset`` is where it stands in the file, ``around`` more of it to judge by.

    Raises:
        DataError: It is binary, or in another encoding; the message names the byte and the nearest one that works.
    """
    if not codecs.lookup(encoding).name.startswith(_WIDE) and b"\0" in raw:
        raise _binary_or_wide(raw, path=path, offset=offset)
    try:
        text = raw.decode("utf-8-sig" if offset == 0 and _is_utf8(encoding) else encoding)
    except UnicodeDecodeError as error:
        raise _wrong_encoding(raw, error.start, encoding, path, offset=offset, around=around or raw) from error
    if not _is_utf8(encoding) and offset == 0 and _is_surely_utf8(raw):
        raise DataError("data.really_utf8", path=path, encoding=encoding, sample=_glimpse(raw.decode("utf-8-sig")))
    return text


def _is_utf8(encoding: str) -> bool:
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def _is_surely_utf8(raw: bytes) -> bool:
    """Say whether bytes read as UTF-8 and hold so many wide characters that this is no chance."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return sum(character > "\u07ff" for character in text) >= 10


def _binary_or_wide(raw: bytes, *, path: Path, offset: int) -> DataError:
    place = offset + raw.index(b"\0")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        sample = _try(raw, "utf-16")
        if sample:
            values = {"path": path, "offset": place, "encoding": "utf-8", "byte": "0x00"}
            return DataError("data.bad_encoding", **values, nearest="utf-16", sample=sample)
    return DataError("data.binary_file", path=path, offset=place)


def _wrong_encoding(raw: bytes, start: int, encoding: str, path: Path, *, offset: int, around: bytes) -> DataError:
    """Return the error for bytes that are no text in ``encoding``, with the nearest encoding that works."""
    values = {"path": path, "offset": offset + start, "encoding": encoding, "byte": f"0x{raw[start]:02x}"}
    nearest = nearest_encoding(around[:_SAMPLE_BYTES], not_this=encoding)
    if nearest is None:
        return DataError("data.bad_byte", **values)
    return DataError("data.bad_encoding", **values, nearest=nearest, sample=_try(around, nearest))


def nearest_encoding(raw: bytes, *, not_this: str) -> str | None:
    """Return the encoding in which ``raw`` reads most like text, or None if it is UTF-8 with some damage or no text."""
    if _is_utf8(not_this) and _is_damaged_utf8(raw):
        return None
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        is_news = not codecs.lookup(not_this).name.startswith("utf-16")
        return "utf-16" if is_news and _try(raw, "utf-16") else None
    readable = [e for e in _TRIED[:3] if codecs.lookup(e).name != codecs.lookup(not_this).name and _try(raw, e)]
    return max(readable, key=lambda name: _likeness(raw, name), default=None)


def _is_damaged_utf8(raw: bytes) -> bool:
    text = raw.decode("utf-8", "replace")
    return sum(c > "\x7f" and c != "\ufffd" for c in text) > 4 * text.count("\ufffd")


def _likeness(raw: bytes, encoding: str) -> float:
    text = raw[:_SAMPLE_BYTES].decode(encoding, "ignore")
    wide = [character for character in text if character > "\x7f"]
    return sum(character in _FREQUENT for character in wide) / max(len(wide), 1)


def _try(raw: bytes, encoding: str) -> str:
    """Return a glimpse of ``raw`` read in ``encoding``, empty if it can't be."""
    try:
        return _glimpse(codecs.getincrementaldecoder(encoding)().decode(raw[:_SAMPLE_BYTES]))
    except UnicodeDecodeError:
        return ""


def _glimpse(text: str) -> str:
    """Return the first telling characters: from the first one beyond ASCII."""
    start = next((i for i, character in enumerate(text) if character > "\x7f"), 0)
    return " ".join(text[start : start + 24].split())
