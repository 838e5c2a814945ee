"""Arithmetic of ranges: what two blocks of a tensor have in common, in the numbering of either.

A block is a product over the dims of the whole tensor: in each the (offset, length) stretches it has, one after
the other. Its values lie row-major in that order.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from trireme.checkpoint.record import DimRanges, Ranges

Box = tuple[slice, ...]


def block_shape(ranges: Ranges) -> tuple[int, ...]:
    """Return the shape of a block."""
    return tuple(sum(length for _, length in dim) for dim in ranges)


def block_numel(ranges: Ranges) -> int:
    """Return the elements of a block."""
    return math.prod(block_shape(ranges))


def full_ranges(shape: tuple[int, ...]) -> Ranges:
    """Return the ranges of a block that is the whole tensor."""
    return tuple(((0, size),) for size in shape)


def common_boxes(one: Ranges, other: Ranges) -> Iterator[tuple[Box, Box]]:
    """Yield (place in one, place in the other) of each unbroken box that both blocks have."""
    dims = [_common(mine, theirs) for mine, theirs in zip(one, other, strict=True)]
    for corner in itertools.product(*dims):
        yield (
            tuple(slice(mine, mine + length) for mine, _, length in corner),
            tuple(slice(theirs, theirs + length) for _, theirs, length in corner),
        )


def narrow(dim: DimRanges, start: int, length: int) -> DimRanges:
    """Return which stretches the ``length`` places of a block from ``start`` on are."""
    kept = []
    for place, (offset, size) in _placed(dim):
        first, last = max(start, place), min(start + length, place + size)
        if first < last:
            kept.append((offset + first - place, last - first))
    return tuple(kept) or ((0, 0),)


def _common(one: DimRanges, other: DimRanges) -> list[tuple[int, int, int]]:
    """Return (place in one, place in the other, length) of what two lists of stretches share."""
    mine = sorted(_placed(one), key=lambda each: each[1])
    theirs = sorted(_placed(other), key=lambda each: each[1])
    found, left, right = [], 0, 0
    while left < len(mine) and right < len(theirs):
        (place, (start, size)), (their_place, (their_start, their_size)) = mine[left], theirs[right]
        first, last = max(start, their_start), min(start + size, their_start + their_size)
        if first < last:
            found.append((place + first - start, their_place + first - their_start, last - first))
        if start + size <= their_start + their_size:
            left += 1
        else:
            right += 1
    return found


def _placed(dim: DimRanges) -> list[tuple[int, tuple[int, int]]]:
    """Return each stretch with where it begins in the block."""
    starts = itertools.accumulate((length for _, length in dim), initial=0)
    return list(zip(starts, dim, strict=False))
