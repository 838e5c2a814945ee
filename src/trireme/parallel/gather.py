"""Making a whole tensor of what ranks hold of it, and the way back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from trireme.parallel.piece import Piece, Range
from trireme.parallel.rows import rows_of


class Gatherer(Protocol):
    """Knows how one tensor is cut over a group; every rank of it calls ``gather``."""

    def gather(self, local: Tensor) -> Tensor:
        """Give the whole of a tensor that is cut like this one."""
        ...

    def keep(self, whole: Tensor) -> Tensor:
        """Give what this rank holds of it."""
        ...


class RowGather:
    """Rows cut over a group, as ZeRO does; with copies of shards, over the ranks that share out one copy."""

    def __init__(self, num_rows: int, *, group: dist.ProcessGroup) -> None:
        self._group = group
        self._degree = dist.get_world_size(group)
        self._num_rows = num_rows
        self._rows = rows_of(num_rows, rank=dist.get_rank(group), degree=self._degree)

    def gather(self, local: Tensor) -> Tensor:
        """Give all rows."""
        most = -(-self._num_rows // self._degree)
        padded = local.new_zeros((most, *local.shape[1:]))
        padded[: local.shape[0]] = local
        whole = padded.new_empty((most * self._degree, *local.shape[1:]))
        dist.all_gather_single(whole, padded, group=self._group)
        return whole[: self._num_rows]

    def keep(self, whole: Tensor) -> Tensor:
        """Give this rank's rows."""
        return whole.narrow(0, *self._rows)


class RangeGather:
    """Any cut that pieces describe: tensor-parallel shares (fused matrices, stretches that all keep), rows of experts.

    The group's ranks tell each other once, at the first gather, which ranges each holds.
    """

    def __init__(
        self, *, global_shape: tuple[int, ...], ranges: tuple[tuple[Range, ...], ...], group: dist.ProcessGroup
    ) -> None:
        self._global_shape = global_shape
        self._own = ranges
        self._group = group
        self._all: list[tuple[tuple[Range, ...], ...]] = []

    def gather(self, local: Tensor) -> Tensor:
        """Give the whole tensor from shares that may differ in size."""
        if not self._all:
            self._all = [self._own] * dist.get_world_size(self._group)
            dist.all_gather_object(self._all, self._own, group=self._group)
        most = max(math.prod(_shape_of(ranges)) for ranges in self._all)
        padded = local.new_zeros(most)
        padded[: local.numel()] = local.flatten()
        flat = local.new_empty(most * len(self._all))
        dist.all_gather_single(flat, padded, group=self._group)
        whole = local.new_empty(self._global_shape)
        for ranges, row in zip(self._all, flat.view(len(self._all), most), strict=True):
            shape = _shape_of(ranges)
            piece = self._piece(row[: math.prod(shape)].view(shape), ranges)
            for place, part in piece.boxes():
                whole[place] = piece.tensor[part]
        return whole

    def keep(self, whole: Tensor) -> Tensor:
        """Give this rank's share."""
        piece = self._piece(whole.new_empty(_shape_of(self._own)), self._own)
        for place, part in piece.boxes():
            piece.tensor[part] = whole[place]
        return piece.tensor

    def _piece(self, tensor: Tensor, ranges: tuple[tuple[Range, ...], ...]) -> Piece:
        return Piece(name="", tensor=tensor, global_shape=self._global_shape, ranges=ranges)


def _shape_of(ranges: tuple[tuple[Range, ...], ...]) -> tuple[int, ...]:
    return tuple(sum(length for _, length in stretches) for stretches in ranges)


class GatherChain:
    """Cuts of cuts: the first is the innermost, undone first."""

    def __init__(self, gatherers: Sequence[Gatherer]) -> None:
        self._gatherers = tuple(gatherers)

    @property
    def is_cut(self) -> bool:
        """Whether the local tensor is less than the whole."""
        return bool(self._gatherers)

    def gather(self, local: Tensor) -> Tensor:
        """Give the whole tensor."""
        for each in self._gatherers:
            local = each.gather(local)
        return local

    def keep(self, whole: Tensor) -> Tensor:
        """Give what this rank holds."""
        for each in reversed(self._gatherers):
            whole = each.keep(whole)
        return whole


def gatherer_of(parameter: Tensor, *, share: Gatherer | None) -> GatherChain:
    """Give how to make a whole of a parameter: its rows first, then what other axes cut."""
    chain: list[Gatherer] = []
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if isinstance(placement, Shard) and parameter.device_mesh.size(axis) > 1:
                chain.append(RowGather(parameter.shape[0], group=parameter.device_mesh.get_group(axis)))
    if share is not None:
        chain.append(share)
    return GatherChain(chain)
