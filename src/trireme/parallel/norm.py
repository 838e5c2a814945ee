"""The one true gradient norm of a model, however its parameters are spread over the ranks of a world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.part import ParameterPart
from trireme.parallel.rows import held_rows

_SUM_DTYPE = torch.float64
"""Of the sum over ranks: one number, and they must agree on its format even if one of them has no gradient."""


def grad_norm(
    parts: Iterable[ParameterPart], *, world_group: dist.ProcessGroup | None = None, device: torch.device | None = None
) -> Tensor:
    """Return the Euclidean norm over all gradients of all ranks, each element once; the same on every rank.

    Every rank of the group calls it, one without gradients too. One all-reduce of one number.

    Args:
        parts: Each of this rank's parameters once.
        world_group: All ranks of the layout. Default: the world.
        device: Where to compute where a rank has no parameter at all.
    """
    seen: dict[int, ParameterPart] = {id(part.parameter): part for part in parts}
    counted = [part for part in seen.values() if part.parameter.grad is not None]
    where = next((local_shard(part.parameter).device for part in seen.values()), device or torch.device("cpu"))
    total = _local_square_sum(counted, device=where)
    if dist.is_initialized():
        total = total.to(device or where)  # shards in host memory, ranks that talk through their devices
        dist.all_reduce(total, group=world_group)
    return total.sqrt()


@torch.no_grad()
def _local_square_sum(parts: Sequence[ParameterPart], *, device: torch.device) -> Tensor:
    """Add up squares, each divided by the number of ranks that will add it too."""
    tensors, weights = [], []
    for part in parts:
        grad = part.parameter.grad
        assert grad is not None
        tensors.append(local_shard(grad))
        weights.append(1.0 / part.copies)
        if part.kept is not None:
            for stretch in _kept_stretches(part, grad):
                tensors.append(stretch)
                weights.append(1.0 / part.kept.copies - 1.0 / part.copies)
    if not tensors:
        return torch.zeros((), dtype=_SUM_DTYPE, device=device)
    norms = _norms(tensors)
    scale = torch.tensor(weights, dtype=norms.dtype, device=norms.device)
    return (norms.square() * scale).sum().to(_SUM_DTYPE)


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    """Give the norm of each tensor, computed in no less than fp32; one dtype after another."""
    by_dtype: dict[torch.dtype, list[int]] = {}
    for index, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(index)
    widest = torch.float64 if torch.float64 in by_dtype else torch.float32
    norms: list[Tensor | None] = [None] * len(tensors)
    for dtype, indices in by_dtype.items():
        wide = torch.promote_types(dtype, torch.float32)
        found = torch._foreach_norm([tensors[index] for index in indices], 2, dtype=wide)
        for index, norm in zip(indices, found, strict=True):
            norms[index] = norm.to(widest)
    return torch.stack([norm for norm in norms if norm is not None])


def _kept_stretches(part: ParameterPart, grad: Tensor) -> list[Tensor]:
    kept = part.kept
    assert kept is not None
    local = local_shard(grad)
    offset, length = held_rows(grad) if kept.dim == 0 else (0, local.shape[kept.dim])
    stretches = []
    for start, size in kept.ranges:
        first, last = max(start, offset), min(start + size, offset + length)
        if first < last:
            stretches.append(local.narrow(kept.dim, first - offset, last - first))
    return stretches
