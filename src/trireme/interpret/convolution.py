"""Convolutions over channels: a contraction, or channel by channel."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.contraction import add_bias, contract
from trireme.interpret.tensor_state import shard_of, with_shard


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
    """Depthwise: each channel alone, so channels are cut like heads."""
    shard = shard_of(x)
    if shard is None and shard_of(weight) is None:
        return NotImplemented
    depthwise = weight.shape[1] == 1 and shard is not None and shard.dim == 1 and shard.split.total == groups
    if not depthwise or shard is None:
        raise call.refuse(x, weight)
    known = shard_of(weight)
    if known is not None and (known.dim, known.split) != (0, shard.split):
        raise call.refuse(weight)
    local = weight if known is not None else call.interpreter.share(weight, 0, shard.split)
    result = call.function(x, local, None, *options, x.shape[1])
    return add_bias(call, with_shard(result, shard), bias, dim=1)
