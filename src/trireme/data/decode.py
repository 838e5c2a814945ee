"""Token ids to text one at a time, holding back what is not yet a whole character."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

_MARK = "\ufffd"
_MAX_HELD = 16
"""Ids after which a mark is taken as final: no character takes more byte tokens than four."""


class StreamDecoder(Protocol):
    """Gives text as ids come; all pieces joined are the text of all ids decoded at once."""

    def push(self, token_id: int) -> str:
        """Take one id; return the text that is now certain, often one token's, sometimes none."""

    def finish(self) -> str:
        """Return what was held back; bytes that never became a character are U+FFFD."""


class ByteDecoder:
    """Streams a byte-level vocabulary: bytes are joined before they are read as UTF-8."""

    def __init__(self, bytes_by_id: Sequence[bytes], *, skipped: frozenset[int]) -> None:
        self._bytes_by_id = bytes_by_id
        self._skipped = skipped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """Take one id; return the characters that are complete."""
        if token_id in self._skipped:
            return ""
        return self._decoder.decode(self._bytes_by_id[token_id])

    def finish(self) -> str:
        """Return what was held back."""
        return self._decoder.decode(b"", final=True)


class PieceDecoder:
    """Streams any other vocabulary by comparing what the last ids give with and without the new one."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = ""
        self._context = 0  # decoding starts here: some tokens read differently at the very beginning
        self._settled = 0

    def push(self, token_id: int) -> str:
        """Take one id; return the text that it settles."""
        self._ids.append(token_id)
        settled = self._decode(self._ids[self._context : self._settled])
        text = self._decode(self._ids[self._context :])
        overdue = len(self._ids) - self._settled >= _MAX_HELD
        if text.startswith(settled):
            new = text[len(settled) :]
        else:
            new = self._decode(self._ids[self._settled :]) if overdue else ""
        if not new or (new.endswith(_MARK) and not overdue):
            return ""
        self._context, self._settled = self._settled, len(self._ids)
        self._shown += new
        return new

    def finish(self) -> str:
        """Return the rest of the whole text."""
        whole = self._decode(self._ids)
        rest = whole[len(self._shown) :] if whole.startswith(self._shown) else ""
        self._shown += rest
        return rest


def bytes_of_vocabulary(content: dict[str, Any], *, size: int) -> list[bytes] | None:
    """Return the bytes each id stands for, or None where the vocabulary is not byte-level."""
    if not _is_byte_level(content.get("decoder")):
        return None
    table = [b""] * size
    for piece, token_id in content["model"]["vocab"].items():
        table[token_id] = _bytes_of_piece(piece)
    for token in content.get("added_tokens", ()):
        table[token["id"]] = token["content"].encode("utf-8", "surrogatepass")
    return table


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if not decoder:
        return False
    if decoder["type"] == "Sequence":
        return len(decoder["decoders"]) == 1 and _is_byte_level(decoder["decoders"][0])
    return bool(decoder["type"] == "ByteLevel")


def _bytes_of_piece(piece: str) -> bytes:
    table = byte_of_character()
    try:
        return bytes([table[character] for character in piece])
    except KeyError:
        return piece.encode("utf-8", "surrogatepass")


@cache
def byte_of_character() -> dict[str, int]:
    """Return GPT-2's alphabet: the visible character that stands for each byte.

    Source: Radford et al. 2019, released code `encoder.py`: printable Latin-1 stands for itself, the rest
    follows from U+0100 in byte order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}
