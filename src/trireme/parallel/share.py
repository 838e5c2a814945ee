"""Giving every pipeline rank what the last stage alone has."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from trireme.parallel.axes import Axes


def share_from_last(outputs: Any, *, axes: Axes) -> Any:
    """Return the outputs of the pipeline rank that has them, on all of its line; their nesting must pickle."""
    line = axes["pp"]
    if line.degree == 1:
        return outputs
    owners: list[Any] = [None] * line.degree
    leaves, spec = tree_flatten(outputs)
    described = None if outputs is None else ([_describe(leaf) for leaf in leaves], spec)
    dist.all_gather_object(owners, described, group=line.group)
    owner = next(rank for rank, found in enumerate(owners) if found is not None)
    kinds, spec = owners[owner]
    source = dist.get_global_rank(line.group, owner)
    if owner != line.rank:
        leaves = [_room(kind, device=axes.device) for kind in kinds]
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            dist.broadcast(leaf, src=source, group=line.group)
    return tree_unflatten(leaves, spec)


def _describe(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf


def _room(kind: Any, *, device: torch.device) -> Any:
    if isinstance(kind, tuple) and len(kind) == 2 and isinstance(kind[1], torch.dtype):
        return torch.empty(kind[0], dtype=kind[1], device=device)
    return kind
