"""Where the elements of a local tensor lie in the global one, for drawing what belongs to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trireme.interpret.tensor_state import marks_of

_CHUNK = 1 << 22
"""Elements drawn at a time; their numbers need 8 bytes each."""

_NESTING = ("tp", "cp")
"""Axes from the innermost cut outwards: tensor parallelism cuts what context parallelism left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A local tensor's place.

    Attributes:
        shape: Its own.
        full: The global tensor's dims, as far as one forward knows them: the first counts from ``first_row`` on.
        first: Where dim 0 begins.
        positions: For dims that are cut, where their places lie.
    """

    shape: tuple[int, ...]
    full: tuple[int, ...]
    first: int
    positions: Mapping[int, Tensor]
    device: torch.device

    def draw(self, function: Callable[[Tensor], Tensor], *, dtype: torch.dtype) -> Tensor:
        """Give ``function`` of each element's number in the global tensor."""
        drawn = torch.empty(math.prod(self.shape), dtype=dtype, device=self.device)
        start = 0
        for numbers in self._numbers():
            drawn[start : start + numbers.numel()] = function(numbers)
            start += numbers.numel()
        return drawn.view(self.shape)

    def _numbers(self) -> Iterator[Tensor]:
        total = math.prod(self.shape)
        if not self.positions:
            first = self.first * math.prod(self.full[1:])
            for start in range(first, first + total, _CHUNK):
                yield torch.arange(start, min(start + _CHUNK, first + total), device=self.device)
            return
        if not total:
            return
        row = self._row()
        step = max(1, _CHUNK // row.numel())
        stride = math.prod(self.full[1:])
        leading = self.positions.get(0)
        if leading is None:
            leading = torch.arange(self.shape[0], device=self.device)
        for part in (leading + self.first).split(step):  # type: ignore[no-untyped-call]
            yield (part[:, None] * stride + row).reshape(-1)

    def _row(self) -> Tensor:
        index = torch.zeros(1, dtype=torch.int64, device=self.device)
        for dim in range(1, len(self.shape)):
            along = self.positions.get(dim)
            if along is None:
                along = torch.arange(self.shape[dim], device=self.device)
            index = (index[:, None] * self.full[dim] + along).reshape(-1)
        return index


def place_of(tensor: Tensor, ranks: Mapping[str, int], *, first_row: int, rows: int) -> tuple[Layout, bool]:
    """Give a tensor's place, and whether its rows could be placed in the global batch.

    Dim 0 counts the batch's rows, or equally many things for each; of length one, beside several rows, it is the
    same for all of them.
    """
    positions, full = _cut_dims(tensor, ranks)
    length = full[0] if full else 1
    each, rest = divmod(length, rows) if rows else (0, 0)
    placed = rest == 0 or length == 1
    first = 0 if not full or (length == 1 and rows != 1) else first_row * max(each, 1)
    layout = Layout(shape=tuple(tensor.shape), full=full, first=first, positions=positions, device=tensor.device)
    return layout, placed


def _cut_dims(tensor: Tensor, ranks: Mapping[str, int]) -> tuple[dict[int, Tensor], tuple[int, ...]]:
    marks = marks_of(tensor)
    full = list(tensor.shape)
    positions: dict[int, Tensor] = {}
    for axis in sorted(marks, key=lambda axis: _NESTING.index(axis) if axis in _NESTING else len(_NESTING)):
        shard = marks[axis]
        ranges = [torch.arange(start, start + length) for start, length in shard.split.ranges(ranks[axis])]
        along = torch.cat(ranges).to(tensor.device)
        known = positions.get(shard.dim)
        positions[shard.dim] = along if known is None else along[known]
        full[shard.dim] = shard.split.total
    return positions, tuple(full)
