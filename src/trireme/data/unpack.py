"""Read a file in chunks, unpacking gzip, zstd and xz, and noticing when the end is missing."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from trireme.data.source import SourceFile
from trireme.errors import DataError

_READ_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Some bytes of a file as its reader sees them, and how many bytes on disk they took."""

    content: bytes
    disk_bytes: int


def read_chunks(file: SourceFile) -> Iterator[Chunk]:
    """Yield the unpacked content of ``file``.

    Raises:
        DataError: The file can't be read, is damaged, or ends before its packing says.
    """
    try:
        yield from _unpacked(file) if file.compression else _plain(file)
    except OSError as error:
        raise DataError("data.cannot_read", path=file.path, reason=error.strerror or error) from error


def _plain(file: SourceFile) -> Iterator[Chunk]:
    with file.path.open("rb") as stream:
        while content := stream.read(_READ_BYTES):
            yield Chunk(content=content, disk_bytes=len(content))


def _unpacked(file: SourceFile) -> Iterator[Chunk]:
    """Unpack member after member; the library readers would take a cut zstd frame for the end of the file."""
    start, failures = _unpacker(file.compression)
    unpacker, at_boundary = start(), True
    with file.path.open("rb") as stream:
        while raw := stream.read(_READ_BYTES):
            disk_bytes, rest = len(raw), raw
            while rest:
                if unpacker.eof:
                    rest = rest.lstrip(b"\0")  # padding between or after members
                    unpacker, at_boundary = start(), True
                    continue
                try:
                    content = unpacker.decompress(rest)
                except failures as error:
                    raise DataError("data.damaged_packing", path=file.path, packing=file.compression) from error
                at_boundary = False
                rest = unpacker.unused_data if unpacker.eof else b""
                yield Chunk(content=content, disk_bytes=disk_bytes)
                disk_bytes = 0
    if not (unpacker.eof or at_boundary):
        raise DataError("data.cut_packing", path=file.path, packing=file.compression)


def _unpacker(compression: str) -> tuple[Callable[[], Any], tuple[type[Exception], ...]]:
    if compression == "gz":
        return lambda: zlib.decompressobj(wbits=31), (zlib.error,)
    if compression == "xz":
        import lzma

        return lzma.LZMADecompressor, (lzma.LZMAError,)
    import zstandard

    return lambda: zstandard.ZstdDecompressor().decompressobj(), (zstandard.ZstdError,)
