"""Making a whole tensor of what ranks hold of it, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from trireme.interpret import ParameterSplit
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


class TensorParallelGather:
    """A parameter cut by the tensor plan."""

    def __init__(self, split: ParameterSplit, *, group: dist.ProcessGroup) -> None:
        self._split = split
        self._group = group

    def gather(self, local: Tensor) -> Tensor:
        """Give the whole parameter from shares that may differ in size."""
        shapes = [self._split.local_shape(rank=rank) for rank in range(dist.get_world_size(self._group))]
        most = max(shape.numel() for shape in shapes)
        padded = local.new_zeros(most)
        padded[: local.numel()] = local.flatten()
        flat = local.new_empty(most * len(shapes))
        dist.all_gather_single(flat, padded, group=self._group)
        rows = flat.view(len(shapes), most)
        return self._split.assemble([row[: shape.numel()].view(shape) for row, shape in zip(rows, shapes, strict=True)])

    def keep(self, whole: Tensor) -> Tensor:
        """Give this rank's share."""
        return self._split.take(whole, rank=dist.get_rank(self._group))


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


def gatherer_of(parameter: Tensor, *, tensor_parallel: Gatherer | None) -> GatherChain:
    """Give how to make a whole of a parameter: its rows first, then its tensor-parallel shares."""
    chain: list[Gatherer] = []
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            if isinstance(placement, Shard) and parameter.device_mesh.size(axis) > 1:
                chain.append(RowGather(parameter.shape[0], group=parameter.device_mesh.get_group(axis)))
    if tensor_parallel is not None:
        chain.append(tensor_parallel)
    return GatherChain(chain)
