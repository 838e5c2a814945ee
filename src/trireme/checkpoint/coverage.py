"""Whether the slices of a tensor cover each of its elements exactly once."""

from __future__ import annotations

import itertools
import math

from trireme.checkpoint.record import DimRanges, Ranges, TensorRecord


def check_coverage(tensor: TensorRecord) -> None:
    """Raise ValueError unless the slices lie inside the tensor, don't overlap and leave nothing out."""
    for piece in tensor.slices:
        if len(piece.ranges) != len(tensor.shape):
            raise ValueError(f"ranges of {tensor.name!r}")
        for ranges, size in zip(piece.ranges, tensor.shape, strict=True):
            _check_dim(tensor.name, ranges, size)
    if len(tensor.slices) == 1 and tensor.slices[0].shape == tensor.shape:
        return
    covered = sum(math.prod(piece.shape) for piece in tensor.slices)
    if covered != math.prod(tensor.shape):
        raise ValueError(f"{tensor.name!r}: {covered} / {math.prod(tensor.shape)}")
    for left, right in itertools.combinations(tensor.slices, 2):
        if covered and _overlap(left.ranges, right.ranges):
            raise ValueError(f"overlap in {tensor.name!r}")


def _check_dim(name: str, ranges: DimRanges, size: int) -> None:
    end = 0
    for start, length in ranges:
        if start < end or start + length > size:
            raise ValueError(f"ranges of {name!r}")
        end = start + length


def _overlap(left: Ranges, right: Ranges) -> bool:
    """Tell whether two products of ranges share an element: they do if they share one in every dimension."""
    return all(
        any(max(a, b) < min(a + length, b + other) for a, length in ours for b, other in theirs)
        for ours, theirs in zip(left, right, strict=True)
    )
