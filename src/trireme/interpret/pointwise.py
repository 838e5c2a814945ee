"""Elementwise functions: shards stay shards; whole operands are cut along the same dim."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.collective import take
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import global_shape, map_tensors, shard_of, sources_of, tensors_in, with_shard


def pointwise(call: Call) -> Any:
    """Compute each element from those at its own place."""
    shards = [(tensor, shard) for tensor in tensors_in(call.args, call.kwargs) if (shard := shard_of(tensor))]
    first, shard = shards[0]
    from_right = shard.dim - first.ndim
    for tensor, other in shards[1:]:
        if other.dim - tensor.ndim != from_right or other.split != shard.split:
            raise call.refuse(tensor)
    if _writes_into_whole(call) or (call.name == "where" and len(call.args) + len(call.kwargs) < 3):
        raise call.refuse(call.args, call.kwargs)
    joined = Shard(dim=0, split=shard.split, sources=sources_of(call.args, call.kwargs), unit=shard.unit)

    def local(tensor: Tensor) -> Tensor:
        return met(call, tensor, joined, from_right)

    result = call.function(*map_tensors(call.args, local), **map_tensors(dict(call.kwargs), local))
    return map_tensors(result, lambda tensor: _marked(tensor, joined, from_right))


def met(call: Call, tensor: Tensor, shard: Shard, from_right: int) -> Tensor:
    """Give what an operand brings to an elementwise function whose other operands are sharded at ``from_right``."""
    if shard_of(tensor) is not None:
        return tensor
    if tensor.ndim + from_right < 0 or tensor.shape[from_right] == 1:
        met_shards: Tensor = call.interpreter.spread(tensor)
        return met_shards
    if tensor.shape[from_right] != shard.split.total:
        raise call.refuse(call.args, call.kwargs)
    return call.interpreter.share(tensor, tensor.ndim + from_right, shard.split)


def _marked(tensor: Tensor, shard: Shard, from_right: int) -> Tensor:
    placed = Shard(dim=tensor.ndim + from_right, split=shard.split, sources=shard.sources, unit=shard.unit)
    return with_shard(tensor, placed)


def _writes_into_whole(call: Call) -> bool:
    in_place = call.name.endswith("_") and not call.name.endswith("__")
    reversed_names = ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__ior__", "__iand__")
    written = (in_place or call.name in reversed_names) and shard_of(call.args[0]) is None
    return written or call.kwargs.get("out") is not None


def type_of_other(call: Call) -> Any:
    """Take dtype, device or kind from a second tensor, whose own sharding doesn't matter."""
    tensor = call.args[0]
    shard = shard_of(tensor)
    result = call.function(*call.args, **call.kwargs)
    return result if shard is None else with_shard(result, shard)


def dropout(call: Call) -> Any:
    """Drop what one device would drop: every rank draws for the whole tensor and keeps its share."""
    x = call.args[0] if call.args else call.kwargs["input"]
    p, training = call.get(1, "p", default=0.5), call.get(2, "training", default=True)
    if not training or p == 0.0:
        return pointwise(call)
    shard = shard_of(x)
    if shard is None or call.get(3, "inplace", default=False):
        raise call.refuse(x)
    whole = F.dropout(torch.ones(global_shape(x), dtype=x.dtype, device=x.device), p, True)
    return with_shard(x * take(whole, shard.dim, shard.split, call.interpreter.line.rank), shard)
