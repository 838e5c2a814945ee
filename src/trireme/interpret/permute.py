"""Functions that only move dims: the sharded one goes along."""

from __future__ import annotations

from typing import Any

from trireme.interpret.call import Call, sharded, the_shard


def transpose(call: Call) -> Any:
    """Swap two dims."""
    x = call.args[0]
    a, b = (call.get(place, name) % x.ndim for place, name in ((1, "dim0"), (2, "dim1")))
    return _swapped(call, a, b)


def flip_last(call: Call) -> Any:
    """``x.T``, ``x.t()``, ``x.mT``: swap the last two dims."""
    x = call.args[0]
    if x.ndim != 2 and call.name in ("T", "t"):
        raise call.refuse(x)
    return _swapped(call, x.ndim - 2, x.ndim - 1)


def _swapped(call: Call, a: int, b: int) -> Any:
    x = call.args[0]
    shard = the_shard(x)
    return sharded(x.transpose(a, b), shard, dim={a: b, b: a}.get(shard.dim, shard.dim))


def permute(call: Call) -> Any:
    """Reorder all dims."""
    x = call.args[0]
    order = [dim % x.ndim for dim in call.listed(1, "dims")]
    shard = the_shard(x)
    return sharded(x.permute(order), shard, dim=order.index(shard.dim))


def movedim(call: Call) -> Any:
    """Move one dim."""
    x = call.args[0]
    source, target = call.get(1, "source"), call.get(2, "destination")
    if not isinstance(source, int):
        raise call.refuse(x)
    order = [dim for dim in range(x.ndim) if dim != source % x.ndim]
    order.insert(target % x.ndim, source % x.ndim)
    shard = the_shard(x)
    return sharded(x.permute(order), shard, dim=order.index(shard.dim))


def unsqueeze(call: Call) -> Any:
    """Add a dim of one."""
    x = call.args[0]
    dim = call.get(1, "dim") % (x.ndim + 1)
    shard = the_shard(x)
    return sharded(x.unsqueeze(dim), shard, dim=shard.dim + (dim <= shard.dim))


def squeeze(call: Call) -> Any:
    """Drop a dim of one."""
    x = call.args[0]
    shard = the_shard(x)
    dim = call.get(1, "dim")
    if not isinstance(dim, int):
        raise call.refuse(x)
    dim %= x.ndim
    if dim == shard.dim:
        return x
    return sharded(x.squeeze(dim), shard, dim=shard.dim - (dim < shard.dim and x.shape[dim] == 1))
