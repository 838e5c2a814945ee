"""From a slice in a file into a tensor that may hold another part of the whole: a few megabytes at a time.

A slice is read in the order of the file and cut into boxes of at most ``CHUNK_BYTES``; what of a box the target has is
copied there. Where the target takes a whole stretch of the file as it lies, the bytes go straight into it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trireme.checkpoint.ranges import Box, common_boxes, narrow
from trireme.checkpoint.record import Ranges, SliceRecord
from trireme.checkpoint.shard import SliceFile, bytes_of
from trireme.checkpoint.stored_type import STORED_TYPES

if TYPE_CHECKING:
    import torch

CHUNK_BYTES = 8 * 1024 * 1024
"""The most that is held beside the target, whatever the size of the tensor or of its slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """An unbroken stretch of a slice: where it begins, how long it is, and which box of the slice it is."""

    offset_bytes: int
    size_bytes: int
    box: tuple[tuple[int, int], ...]


def read_slice_into(
    folder: Path, name: str, piece: SliceRecord, target: torch.Tensor, *, ranges: Ranges, check: bool
) -> None:
    """Copy what a slice and ``target`` have in common; with ``check`` the whole slice is read and hashed on the way.

    Raises:
        CheckpointError: With ``check``: the slice isn't what was saved; the target is then worthless.
    """
    boxes = list(common_boxes(piece.ranges, ranges))
    if not boxes:
        return
    dtype = str(target.dtype).removeprefix("torch.")
    item_bytes = STORED_TYPES[dtype].item_bytes
    with SliceFile(folder, name, piece, check=check) as file:
        if len(boxes) == 1 and _takes_straight(piece, boxes[0], target, check=check):
            inside, outside = boxes[0]
            start_bytes = _start_bytes(piece.shape, inside, item_bytes)
            file.read(start_bytes, bytes_of(target[outside]))
            return
        room = _room(piece, item_bytes, target)
        for chunk in _chunks(piece.shape, item_bytes):
            chunk_ranges = tuple(
                narrow(dim, start, length) for dim, (start, length) in zip(piece.ranges, chunk.box, strict=True)
            )
            found = list(common_boxes(chunk_ranges, ranges))
            if not found and not check:
                continue
            part = room[: chunk.size_bytes // item_bytes]
            file.read(chunk.offset_bytes, bytes_of(part))
            block = part.view([length for _, length in chunk.box])
            for inside, outside in found:
                target[outside].copy_(block[inside])


def _room(piece: SliceRecord, item_bytes: int, target: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty(min(CHUNK_BYTES, piece.size_bytes) // item_bytes, dtype=target.dtype)


def _takes_straight(piece: SliceRecord, box: tuple[Box, Box], target: torch.Tensor, *, check: bool) -> bool:
    """Tell whether the common box is one stretch of the file and one of the target's memory, on the host.

    When the hash is asked for, it must be the whole slice.
    """
    inside, outside = box
    lengths = [place.stop - place.start for place in inside]
    whole = [length == size for length, size in zip(lengths, piece.shape, strict=True)]
    if check and not all(whole):
        return False
    # Row-major: only single rows before the dim that is cut, only whole dims after it.
    cut = max((dim for dim, is_whole in enumerate(whole) if not is_whole), default=0)
    if any(length != 1 for length in lengths[:cut]):
        return False
    here = target[outside]
    return here.device.type == "cpu" and here.is_contiguous() and not here.is_conj() and not here.is_neg()


def _start_bytes(shape: tuple[int, ...], box: Box, item_bytes: int) -> int:
    start = 0
    for size, place in zip(shape, box, strict=True):
        start = start * size + place.start
    return start * item_bytes


def _chunks(shape: tuple[int, ...], item_bytes: int) -> Iterator[_Chunk]:
    """Cut a block into boxes that are unbroken in memory, in order."""
    offset_bytes = 0
    for box in _boxes(shape, item_bytes):
        size_bytes = math.prod(length for _, length in box) * item_bytes
        yield _Chunk(offset_bytes=offset_bytes, size_bytes=size_bytes, box=box)
        offset_bytes += size_bytes


def _boxes(shape: tuple[int, ...], item_bytes: int) -> Iterator[tuple[tuple[int, int], ...]]:
    if not shape:
        yield ()
        return
    row_bytes = math.prod(shape[1:]) * item_bytes
    if row_bytes <= CHUNK_BYTES:
        rows = max(1, CHUNK_BYTES // max(1, row_bytes))
        rest = tuple((0, size) for size in shape[1:])
        for start in range(0, shape[0], rows):
            yield ((start, min(rows, shape[0] - start)), *rest)
        return
    for index in range(shape[0]):
        for box in _boxes(shape[1:], item_bytes):
            yield ((index, 1), *box)
