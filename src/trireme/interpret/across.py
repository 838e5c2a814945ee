"""Functions along the sharded dim itself: each rank does its share, then small results meet.

Over a cut vocabulary this is what keeps logits from being gathered: normalised, compared, ranked and picked from,
at the price of one number per row and collective.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call, sharded, the_shard
from trireme.interpret.pointwise import pointwise
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import shard_of


def check_whole_runs(call: Call, x: Tensor, *, always_pays: bool = False) -> Shard:
    """Return the shard of a tensor along whose sharded dim something is done, or refuse where that isn't right.

    A dim with segments has no one order on a rank, and one that all keep would count several times. While planning,
    a small matrix (a router over experts) is better left whole than normalised across ranks.
    """
    shard = the_shard(x)
    if len(shard.split.parts) != 1 or shard.split.keeps_some:
        raise call.refuse(x)
    decider = call.interpreter.decider
    if decider is not None and not (always_pays or decider.pays_across(shard)):
        raise call.refuse(x)
    return shard


def start_of(call: Call, shard: Shard) -> int:
    """Return where this rank's share begins in the whole dim."""
    ((start, _),) = shard.split.ranges(call.interpreter.line.rank)
    return start


def highest(call: Call, x: Tensor, dim: int) -> Tensor:
    """Give the largest element along the sharded dim, kept as a dim of one; no gradient passes."""
    local = x.detach().amax(dim, keepdim=True)
    return call.interpreter.line.all_reduce(local, where="forward", op=dist.ReduceOp.MAX)


def log_total(call: Call, x: Tensor, dim: int) -> Tensor:
    """Give the logarithm of the sum of exponentials along the sharded dim, kept as a dim of one."""
    top = highest(call, x, dim)
    top = torch.where(top.isinf(), torch.zeros((), dtype=top.dtype, device=top.device), top)
    return call.interpreter.sum_partial((x - top).exp().sum(dim, keepdim=True)).log() + top


def log_softmax(call: Call, x: Tensor, dim: int) -> Tensor:
    """Give log-probabilities along the sharded dim, sharded alike."""
    shard = check_whole_runs(call, x)
    met: Tensor = call.interpreter.spread(log_total(call, x, dim))
    return sharded(x - met, shard, dim=shard.dim)


def softmax(call: Call, x: Tensor, dim: int) -> Tensor:
    """Give probabilities along the sharded dim, sharded alike."""
    shard = check_whole_runs(call, x)
    return sharded(log_softmax(call, x, dim).exp(), shard, dim=shard.dim)


def logsumexp(call: Call) -> Any:
    """``torch.logsumexp(x, dim, keepdim)``."""
    x = call.get(0, "input")
    shard = the_shard(x)
    given, keep = call.get(1, "dim"), bool(call.get(2, "keepdim", default=False))
    dims = {dim % x.ndim for dim in ([given] if isinstance(given, int) else given)}
    if shard.dim not in dims:
        result = torch.logsumexp(x, sorted(dims), keepdim=keep)
        return sharded(result, shard, dim=shard.dim - (0 if keep else sum(dim < shard.dim for dim in dims)))
    check_whole_runs(call, x)
    others = sorted(dims - {shard.dim})
    rows = torch.logsumexp(x, others, keepdim=True) if others else x
    total = log_total(call, rows, shard.dim)
    return total if keep else total.squeeze(tuple(dims))


def extreme(call: Call) -> Any:
    """``amax``, ``amin`` along the sharded dim: elements that are equally extreme share the gradient."""
    x, dims, keep = call.get(0, "input"), call.get(1, "dim", default=()), bool(call.get(2, "keepdim", default=False))
    shard = the_shard(x)
    over = {dim % x.ndim for dim in ([dims] if isinstance(dims, int) else dims)} or set(range(x.ndim))
    if shard.dim not in over:
        return sharded(call.run(*call.args), shard, dim=shard.dim - (0 if keep else sum(d < shard.dim for d in over)))
    check_whole_runs(call, x)
    sign = 1 if call.name == "amax" else -1
    local = sign * (sign * x.detach()).amax(sorted(over), keepdim=True)
    op = dist.ReduceOp.MAX if sign > 0 else dist.ReduceOp.MIN
    best = call.interpreter.line.all_reduce(local, where="forward", op=op)
    there = x == best
    picked = torch.where(there, x, torch.zeros((), dtype=x.dtype, device=x.device))
    order = sorted(over)
    both = torch.stack((picked.sum(order, keepdim=True), there.to(x.dtype).sum(order, keepdim=True)))
    total, count = call.interpreter.sum_partial(both).unbind(0)
    result = total / count.detach()
    return result if keep else result.squeeze(tuple(order))


def ranked(call: Call) -> Any:
    """``max``, ``min``, ``argmax``, ``argmin`` along one dim."""
    x = call.get(0, "input")
    shard = shard_of(x)
    given, keep = call.get(1, "dim"), bool(call.get(2, "keepdim", default=False))
    if call.get(1, "other") is not None and isinstance(call.get(1, "other"), Tensor):
        return pointwise(call)
    if shard is None or (given is not None and not isinstance(given, int)):
        raise call.refuse(call.args, call.kwargs)
    if given is None:
        return _extreme_of_all(call, x)
    dim = given % x.ndim
    if dim != shard.dim:
        return _each(call.run(*call.args), shard, shard.dim - (not keep and dim < shard.dim))
    check_whole_runs(call, x)
    place = _place_of_best(call, x, shard, largest=call.name in ("max", "argmax"))
    if call.name in ("argmax", "argmin"):
        return place if keep else place.squeeze(dim)
    values = pick(call, x, place)
    kept = (values, place) if keep else (values.squeeze(dim), place.squeeze(dim))
    return (torch.return_types.max if call.name == "max" else torch.return_types.min)(kept)


def _extreme_of_all(call: Call, x: Tensor) -> Any:
    if call.name not in ("max", "min"):
        raise call.refuse(x)
    over_all = Call(
        interpreter=call.interpreter, function=torch.amax if call.name == "max" else torch.amin, args=(x,), kwargs={}
    )
    return extreme(over_all)


def _each(result: Any, shard: Shard, dim: int) -> Any:
    if isinstance(result, Tensor):
        return sharded(result, shard, dim=dim)
    for each in result:
        sharded(each, shard, dim=dim)
    return result


def _place_of_best(call: Call, x: Tensor, shard: Shard, *, largest: bool) -> Tensor:
    """Give the first place in the whole dim that holds the extreme, kept as a dim of one."""
    line = call.interpreter.line
    values, places = (x.detach().max if largest else x.detach().min)(shard.dim, keepdim=True)
    best = values.clone()
    line.all_reduce(best, where="forward", op=dist.ReduceOp.MAX if largest else dist.ReduceOp.MIN)
    mine = torch.where(values == best, places + start_of(call, shard), shard.split.total)
    return line.all_reduce(mine, where="forward", op=dist.ReduceOp.MIN)


def pick(call: Call, x: Tensor, places: Tensor) -> Tensor:
    """Give the elements at ``places`` of the whole sharded dim, as ``torch.gather`` does; each rank brings its own."""
    shard = check_whole_runs(call, x)
    ((start, length),) = shard.split.ranges(call.interpreter.line.rank)
    local = places - start
    mine = (local >= 0) & (local < length)
    found = x.gather(shard.dim, torch.where(mine, local, 0))
    own = torch.where(mine, found, torch.zeros((), dtype=x.dtype, device=x.device))
    return call.interpreter.sum_partial(own)


def gathered(call: Call) -> Any:
    """``x.gather(dim, index)`` and ``torch.take_along_dim(x, index, dim)``."""
    x = call.get(0, "input")
    shard = shard_of(x)
    by_dim_first = call.name == "gather"
    dim = call.get(1 if by_dim_first else 2, "dim")
    index = call.get(2 if by_dim_first else 1, "index", "indices")
    if shard is None or dim is None:
        raise call.refuse(call.args, call.kwargs)
    dim %= x.ndim
    other = shard_of(index)
    if dim == shard.dim:
        if other is not None or index.ndim != x.ndim:
            raise call.refuse(x, index)
        return pick(call, x, index if by_dim_first else _broadcast(index, x, dim))
    if other is None and index.ndim == x.ndim and index.shape[shard.dim] == shard.split.total:
        index = call.interpreter.share(index, shard.dim, shard.split)
    elif other is None or (other.dim, other.split) != (shard.dim, shard.split):
        raise call.refuse(x, index)
    return sharded(x.gather(dim, index), shard, dim=shard.dim)


def _broadcast(index: Tensor, x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = index.shape[dim]
    return index.expand(shape)


def topk(call: Call) -> Any:
    """``x.topk(k, dim, largest, sorted)``: the best of every rank's best."""
    x = call.get(0, "input")
    shard = the_shard(x)
    k, dim = call.get(1, "k"), call.get(2, "dim", default=-1) % x.ndim
    if dim != shard.dim:
        return _each(call.run(*call.args), shard, shard.dim)
    check_whole_runs(call, x)
    places = _best_places(call, x, shard, k, largest=call.get(3, "largest", default=True))
    return torch.return_types.topk((pick(call, x, places), places))


def _best_places(call: Call, x: Tensor, shard: Shard, k: int, *, largest: bool) -> Tensor:
    """Let every rank bring its best ``k`` (fewer where it holds fewer), and rank those."""
    line = call.interpreter.line
    dim = shard.dim
    values, places = x.detach().topk(min(k, x.shape[dim]), dim, largest)
    short = min(k, max(shard.split.parts[0])) - values.shape[dim]
    if short:
        worst = float("-inf") if largest else float("inf")
        values = F.pad(values.movedim(dim, -1), (0, short), value=worst).movedim(-1, dim)
        places = F.pad(places.movedim(dim, -1), (0, short)).movedim(-1, dim)
    all_values = line.all_gather_equal(values, dim)
    all_places = line.all_gather_equal(places + start_of(call, shard), dim)
    best = all_values.topk(k, dim, largest).indices
    return all_places.gather(dim, best)


def either(along: Callable[[Call, Tensor, int], Tensor], otherwise: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """Make the rule that goes along the sharded dim where that is asked, and otherwise does something simpler."""

    def rule(call: Call) -> Any:
        x, dim = call.get(0, "input"), call.get(1, "dim")
        shard = shard_of(x)
        if shard is None or dim is None or dim % x.ndim != shard.dim:
            return otherwise(call)
        dtype = call.kwargs.get("dtype")
        exact = x if dtype is None else sharded(x.to(dtype), shard, dim=shard.dim)
        return along(call, exact, shard.dim)

    return rule
