"""Sums and their kin: over other dims local, over the sharded dim partial sums that are then added up."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from trireme.interpret import across
from trireme.interpret.call import Call, sharded, the_shard
from trireme.interpret.tensor_state import global_shape, shard_of

_ADDS_UP = frozenset({"sum", "mean"})


def reduce(call: Call) -> Any:
    """Reduce over the given dims, all of them by default."""
    x = call.args[0] if call.args else call.kwargs["input"]
    if shard_of(x) is None:
        raise call.refuse(call.args, call.kwargs)
    shard = the_shard(x)
    dims = _dims(call, x)
    if call.name in ("var", "std") and len(call.args) > 2:
        raise call.refuse(x)
    keep = bool(call.get(2, "keepdim", default=False))
    if shard.dim in dims:
        return _over_shards(call, x, dims, keep)
    result = call.run(*call.args)
    return sharded(result, shard, dim=shard.dim - (0 if keep else sum(dim < shard.dim for dim in dims)))


def _dims(call: Call, x: Tensor) -> set[int]:
    given = call.get(1, "dim", "axis")
    if given is None:
        return set(range(x.ndim))
    if isinstance(given, bool) or not isinstance(given, (int, list, tuple)):
        raise call.refuse(x)
    return {dim % x.ndim for dim in ([given] if isinstance(given, int) else given)} or set(range(x.ndim))


def _over_shards(call: Call, x: Tensor, dims: set[int], keep: bool) -> Tensor:
    if call.name in ("amax", "amin"):
        found: Tensor = across.extreme(call)
        return found
    if call.name not in _ADDS_UP or the_shard(x).split.keeps_some:
        raise call.refuse(x)
    partial = x.sum(sorted(dims), keepdim=keep, dtype=call.kwargs.get("dtype"))
    total = call.interpreter.sum_partial(partial)
    if call.name == "sum":
        return total
    return total / math.prod(global_shape(x)[dim] for dim in dims)


def along(call: Call) -> Any:
    """Softmax, running sums and sorts along a dim that isn't sharded."""
    x = call.args[0] if call.args else call.kwargs["input"]
    shard = the_shard(x)
    dim = call.get(1, "dim")
    if dim is None or dim % x.ndim == shard.dim:
        raise call.refuse(x)
    return sharded(call.run(*call.args), shard, dim=shard.dim)


def norm(call: Call) -> Any:
    """Layer and RMS norm over dims that aren't sharded; their weights meet shards."""
    x = call.args[0] if call.args else call.kwargs["input"]
    if shard_of(x) is None:
        raise call.refuse(call.args, call.kwargs)
    shard = the_shard(x)
    normalized = call.get(1, "normalized_shape")
    if shard.dim >= x.ndim - len(normalized):
        raise call.refuse(x)
    names = [name for name, value in call.kwargs.items() if value is not x]
    given = call.interpreter.spread_together([*call.args[1:], *(call.kwargs[name] for name in names)])
    others = given[: len(call.args[1:])]
    named = {**call.kwargs, **dict(zip(names, given[len(others) :], strict=True))}
    return sharded(call.function(*call.args[:1], *others, **named), shard, dim=shard.dim)
