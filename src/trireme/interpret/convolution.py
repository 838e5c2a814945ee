"""Convolutions over channels: a contraction, or channel by channel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trireme.interpret.call import Call, the_shard
from trireme.interpret.contraction import add_bias, contract
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import global_shape, origin_of, shard_of, sources_of, with_shard


def convolution(call: Call) -> Any:
    """``F.conv1d``, ``F.conv2d``, ``F.conv3d`` on a batch."""
    x, weight, bias = call.get(0, "input"), call.get(1, "weight"), call.get(2, "bias")
    options = [call.get(place, name, default=default) for place, name, default in _OPTIONS]
    groups = call.get(6, "groups", default=1)
    if x.ndim != weight.ndim:
        raise call.refuse(x, weight)
    if groups != 1:
        return _by_channel(call, x, weight, bias, options, groups)
    space = [f"s{dim}" for dim in range(x.ndim - 2)]
    labels = (["b", "i", *space], ["o", "i", *(f"k{dim}" for dim in range(x.ndim - 2))])
    if (shard := shard_of(x)) is not None and shard.dim >= 2:
        raise call.refuse(x)
    result = contract(call, (x, weight), labels, ["b", "o", *space], lambda a, w: call.function(a, w, None, *options))
    return result if result is NotImplemented else add_bias(call, result, bias, dim=1)


_OPTIONS = ((3, "stride", 1), (4, "padding", 0), (5, "dilation", 1))


def _by_channel(call: Call, x: Tensor, weight: Tensor, bias: Any, options: list[Any], groups: int) -> Any:
    """Grouped and depthwise: groups are independent, so they are cut like heads."""
    into, out = global_shape(x)[1] // groups, global_shape(weight)[0] // groups
    shard = shard_of(x)
    if shard is None and shard_of(weight) is None:
        weight = _decided(call, weight, out)
        if shard_of(weight) is None:
            return NotImplemented
    if shard is not None:
        if shard.dim != 1:
            return _apart(call, x, weight, bias, options, groups)
        by_group = shard.split.divided(into)
        if by_group is None:
            raise call.refuse(x, grain=into, unit=shard.unit)
        own = _alike(call, weight, by_group.scaled(out))
    else:
        known = the_shard(weight)
        by_group = known.split.divided(out)
        if known.dim != 0 or by_group is None:
            raise call.refuse(weight, grain=out if known.dim == 0 else 0)
        x, own = call.interpreter.share(x, 1, by_group.scaled(into)), weight
    result = call.function(x, own, None, *options, by_group.length(call.interpreter.line.rank))
    merged = Shard(dim=1, split=by_group.scaled(out), sources=sources_of(x, own, weight))
    return add_bias(call, with_shard(result, merged), bias, dim=1)


def _decided(call: Call, weight: Tensor, grain: int) -> Tensor:
    """Cut a weight that nothing decides on yet in whole groups."""
    decider = call.interpreter.decider
    if decider is None or origin_of(weight) is None:
        return weight
    local = decider.fused(weight, 0, (weight.shape[0],), grain)
    return weight if local is None else local


def _alike(call: Call, weight: Tensor, split: Split) -> Tensor:
    known = shard_of(weight)
    if known is None:
        return call.interpreter.share(weight, 0, split)
    if (known.dim, known.split) != (0, split):
        raise call.refuse(weight)
    return weight


def _apart(call: Call, x: Tensor, weight: Tensor, bias: Any, options: list[Any], groups: int) -> Any:
    """Another dim than channels is sharded: samples are independent, places in space aren't."""
    shard = the_shard(x)
    if shard.dim != 0 or shard_of(weight) is not None:
        raise call.refuse(x, weight)
    met = [None if each is None else call.interpreter.spread(each) for each in (weight, bias)]
    return with_shard(call.function(x, *met, *options, groups), shard)
