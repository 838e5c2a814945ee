"""A batch cut into micro-batches along its samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trireme.errors import LayoutError


def num_rows(batch: Mapping[str, Any]) -> int:
    """Return the samples of a batch, dim 0 of its tensors.

    Raises:
        LayoutError: It has no tensors, or they disagree.
    """
    rows = {name: value.shape[0] for name, value in batch.items() if isinstance(value, Tensor) and value.ndim}
    if not rows:
        raise LayoutError("ranks.no_rows", batch=", ".join(batch))
    if len(set(rows.values())) > 1:
        raise LayoutError("ranks.uneven_rows", rows=", ".join(f"{name}: {count}" for name, count in rows.items()))
    return next(iter(rows.values()))


def split_rows(batch: Mapping[str, Any], *, count: int) -> list[tuple[dict[str, Any], int]]:
    """Cut a batch into ``count`` micro-batches, each with its number of samples; the first ones are the longer.

    Ranks run equally many, so where samples are too few a micro-batch repeats the first one, as 0 samples.
    """
    each, extra = divmod(num_rows(batch), count)
    parts, start = [], 0
    for index in range(count):
        size = each + (index < extra)
        first = start if size else 0
        parts.append((rows_of(batch, first, first + max(size, 1)), size))
        start += size
    return parts


def rows_of(batch: Mapping[str, Any], first: int, last: int) -> dict[str, Any]:
    """Give the samples first..last-1 of a batch."""
    return {
        name: value[first:last] if isinstance(value, Tensor) and value.ndim else value for name, value in batch.items()
    }
