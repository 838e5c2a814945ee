"""One shard file: a valid safetensors file, written and checked tensor by tensor.

Its header carries the save id, so that a shard of another save is known for what it is.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from trireme.checkpoint.ranges import block_numel, block_shape, full_ranges
from trireme.checkpoint.record import Ranges, ShardRecord, SliceRecord
from trireme.checkpoint.stored_type import STORED_TYPES, StoredType
from trireme.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_ALIGN_BYTES = 8
_PIECE_BYTES = 4 * 1024 * 1024
"""Hashed and written at a time: small enough to be still in the cache when it is written."""

_SAVE_ID_KEY = "trireme_save_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """A block of a tensor that goes into a shard: of which tensor, where in it, its bytes when they are wanted."""

    name: str
    entry: str
    dtype: str
    ranges: Ranges
    data: Callable[[], memoryview]

    @property
    def stored(self) -> StoredType:
        """Return how the values' dtype is stored."""
        return STORED_TYPES[self.dtype]

    @property
    def size_bytes(self) -> int:
        """Return the bytes that the values take in the file."""
        return block_numel(self.ranges) * self.stored.item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShard:
    """What the manifest needs to know of a shard: its own record, and (tensor, slice) of all in it."""

    record: ShardRecord
    slices: tuple[tuple[str, SliceRecord], ...]


def tensor_entry(name: str, tensor: torch.Tensor) -> ShardEntry:
    """Return a whole live tensor as an entry; its bytes are fetched when they are written."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    ranges = full_ranges(tuple(tensor.shape))
    return ShardEntry(name=name, entry=name, dtype=dtype, ranges=ranges, data=lambda: _bytes_on_host(tensor))


def write_shard(
    path: Path,
    entries: Sequence[ShardEntry],
    *,
    save_id: str,
    on_piece: Callable[[Any, int], None] = lambda file, n: None,
) -> WrittenShard:
    """Write a shard to a new file, durably, holding one tensor's bytes at a time.

    ``on_piece(file, size_bytes)`` is called before each piece is written; what it raises ends the write.
    """
    # Wide dtypes first: then every tensor is aligned for whoever maps the file.
    ordered = sorted(entries, key=lambda entry: (-entry.stored.item_bytes, entry.entry))
    header = _header(ordered, save_id)
    slices: list[tuple[str, SliceRecord]] = []
    offset_bytes = len(header)
    with open(path, "xb", buffering=0) as file:
        _write(file, header)
        for entry in ordered:
            digest = _write_values(file, entry.data(), on_piece=on_piece)
            piece = SliceRecord(
                file=path.name,
                entry=entry.entry,
                offset_bytes=offset_bytes,
                size_bytes=entry.size_bytes,
                ranges=entry.ranges,
                xxh3=digest,
            )
            slices.append((entry.name, piece))
            offset_bytes += entry.size_bytes
        os.fsync(file.fileno())
    record = ShardRecord(
        file=path.name,
        size_bytes=offset_bytes,
        header_bytes=len(header),
        header_xxh3=xxhash.xxh3_128_hexdigest(header),
    )
    return WrittenShard(record=record, slices=tuple(slices))


def check_shard(folder: Path, shard: ShardRecord, *, save_id: str) -> None:
    """Raise unless a shard is there, whole in length, with its own header, of this save.

    Raises:
        CheckpointError: It isn't; the message says which of these.
    """
    path = folder / shard.file
    if not path.is_file() or path.is_symlink():
        raise CheckpointError("checkpoint.shard_missing", path=path)
    found_bytes = path.stat().st_size
    if found_bytes != shard.size_bytes:
        raise CheckpointError("checkpoint.shard_size", path=path, found=found_bytes, wanted=shard.size_bytes)
    with open(path, "rb") as file:
        header = file.read(shard.header_bytes)
    found_id, save_id = _save_id_of(header), shard.save_id or save_id
    if found_id not in (None, save_id):
        raise CheckpointError("checkpoint.other_save", path=path, found=found_id, wanted=save_id)
    if found_id is None or xxhash.xxh3_128_hexdigest(header) != shard.header_xxh3:
        raise CheckpointError("checkpoint.shard_header", path=path)


def check_slice(folder: Path, name: str, piece: SliceRecord) -> None:
    """Raise unless the bytes of a slice hash to what the manifest says, reading a piece at a time."""
    buffer = memoryview(bytearray(min(_PIECE_BYTES, piece.size_bytes)))
    digest = xxhash.xxh3_128()
    with open(folder / piece.file, "rb", buffering=0) as file:
        file.seek(piece.offset_bytes)
        for size_bytes in _piece_sizes(piece.size_bytes):
            _read_exactly(file, buffer[:size_bytes], folder / piece.file)
            digest.update(buffer[:size_bytes])
    _check_digest(folder, name, piece, digest.hexdigest())


class SliceFile:
    """A slice open for reading; with ``check`` all of it must be read, in order, and is hashed on the way."""

    def __init__(self, folder: Path, name: str, piece: SliceRecord, *, check: bool) -> None:
        self._folder = folder
        self._name = name
        self._piece = piece
        self._digest = xxhash.xxh3_128() if check else None
        self._file = open(folder / piece.file, "rb", buffering=0)  # noqa: SIM115

    def read(self, offset_bytes: int, into: memoryview) -> None:
        """Fill ``into`` with the bytes from ``offset_bytes`` of the slice on."""
        self._file.seek(self._piece.offset_bytes + offset_bytes)
        start = 0
        for size_bytes in _piece_sizes(len(into)):  # hashed while still in the cache
            part = into[start : start + size_bytes]
            _read_exactly(self._file, part, self._folder / self._piece.file)
            if self._digest is not None:
                self._digest.update(part)
            start += size_bytes

    def __enter__(self) -> SliceFile:
        return self

    def __exit__(self, kind: object, _: object, __: object) -> None:
        self._file.close()
        if kind is None and self._digest is not None:
            _check_digest(self._folder, self._name, self._piece, self._digest.hexdigest())


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy and writable."""
    import torch

    if tensor.numel() == 0:
        return memoryview(bytearray())
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _header(entries: Sequence[ShardEntry], save_id: str) -> bytes:
    fields: dict[str, Any] = {"__metadata__": {"format": "pt", _SAVE_ID_KEY: save_id}}
    start = 0
    for entry in entries:
        end = start + entry.size_bytes
        shape = [*block_shape(entry.ranges), *entry.stored.inner]
        fields[entry.entry] = {"dtype": entry.stored.code, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(fields, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % _ALIGN_BYTES)
    return len(text).to_bytes(8, "little") + text


def _save_id_of(header: bytes) -> str | None:
    try:
        found = json.loads(header[8:])["__metadata__"][_SAVE_ID_KEY]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _bytes_on_host(values: torch.Tensor) -> memoryview:
    # In memory order, as plain bits: at most one copy of this one tensor.
    return bytes_of(values.detach().cpu().resolve_conj().resolve_neg().contiguous())


def _write_values(file: Any, data: memoryview, *, on_piece: Callable[[Any, int], None]) -> str:
    digest = xxhash.xxh3_128()
    start = 0
    for size_bytes in _piece_sizes(len(data)):
        piece = data[start : start + size_bytes]
        on_piece(file, size_bytes)
        digest.update(piece)
        _write(file, piece)
        start += size_bytes
    return digest.hexdigest()


def _write(file: Any, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


def _read_exactly(file: Any, into: memoryview, path: Path) -> None:
    while len(into):
        count = file.readinto(into)
        if not count:
            raise CheckpointError("checkpoint.shard_short", path=path)
        into = into[count:]


def _piece_sizes(total_bytes: int) -> Iterator[int]:
    for _ in range(math.ceil(total_bytes / _PIECE_BYTES)):
        size_bytes = min(_PIECE_BYTES, total_bytes)
        total_bytes -= size_bytes
        yield size_bytes


def _check_digest(folder: Path, name: str, piece: SliceRecord, found: str) -> None:
    if found != piece.xxh3:
        raise CheckpointError("checkpoint.tensor_damaged", path=folder / piece.file, name=name)
