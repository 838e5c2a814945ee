"""Which rows of a tensor a rank's shard holds, so that shards can be written and read as ranges of the whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from trireme.parallel.fsdp_private import fill_shard, managed


def held_rows(parameter: Tensor) -> tuple[int, int]:
    """Give (offset, length) along dim 0 of what this rank holds; a plain tensor is held whole.

    With tensor parallelism the numbering is that of the rank's tensor-parallel share. The same rows hold for
    everything an elementwise optimizer keeps for the parameter. A rank without rows has length 0.
    """
    if not isinstance(parameter, DTensor):
        return 0, parameter.shape[0] if parameter.dim() else 1
    for axis, placement in enumerate(parameter.placements):
        if isinstance(placement, Shard):
            assert placement.dim == 0, "ZeRO cuts along dim 0"
            group = parameter.device_mesh.get_group(axis)
            return rows_of(parameter.shape[0], rank=dist.get_rank(group), degree=dist.get_world_size(group))
    return 0, parameter.shape[0]


def rows_of(num_rows: int, *, rank: int, degree: int) -> tuple[int, int]:
    """Give (offset, length) of one rank; equal numbers of rows but for the last ranks, which may get none."""
    each = -(-num_rows // degree)
    offset = min(rank * each, num_rows)
    return offset, min(each, num_rows - offset)


Fill = Callable[[str, Tensor, int], None]
"""Writes a parameter's rows from an offset on into an empty tensor: (name, rows to fill, offset along dim 0).

With tensor parallelism rows are those of the rank's share.
"""


def fill_shards(modules: Iterable[nn.Module], names: Mapping[int, str], *, device: torch.device, fill: Fill) -> None:
    """Give modules that were sharded on the meta device real shards, one after the other; ties stay."""
    for parameter, record in list(managed(modules)):
        local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
        if not local.is_meta:
            continue
        offset, _ = held_rows(parameter)
        rows = torch.empty(local.shape, dtype=local.dtype, device=device)
        with torch.no_grad():
            fill(names[id(parameter)], rows, offset)
        fill_shard(record, rows)


def fill_whole(root: nn.Module, names: Collection[str], *, device: torch.device, fill: Fill) -> None:
    """Give parameters on the meta device that stay whole real values, wherever they are tied to."""
    for name in names:
        old = root.get_parameter(name)
        if not old.is_meta:
            continue
        values = torch.empty(old.shape, dtype=old.dtype, device=device)
        with torch.no_grad():
            fill(name, values, 0)
        new = nn.Parameter(values, requires_grad=old.requires_grad)
        for owner in root.modules():
            for key, parameter in owner._parameters.items():
                if parameter is old:
                    owner._parameters[key] = new
