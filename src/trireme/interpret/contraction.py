"""Everything that multiplies and sums, by the labels of its dims: one place that knows column and row parallelism.

A label sharded in the result: every operand that has it is cut alike, the others meet shards (column parallel,
heads, batches of experts). A label sharded and summed away: all operands are cut along it, the results are partial
and are added up (row parallel).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.collective import take
from trireme.interpret.pointwise import met
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import origin_of, shard_of, sources_of, with_shard
from trireme.interpret.token_shard import is_token_shard

Labels = Sequence[str]

_BOTTLENECK = 2
"""A dim this many times shorter than what it is multiplied to is a bottleneck; heads together are never so few."""


def contract(
    call: Call, operands: Sequence[Tensor], labels: Sequence[Labels], out: Labels, compute: Callable[..., Tensor]
) -> Any:
    """Give ``compute(*local operands)`` as a shard or summed up; NotImplemented if nothing is sharded."""
    operands = list(operands)
    if not sources_of(operands):
        operands = _with_a_column(call, operands, labels, out)
        if not sources_of(operands):
            return NotImplemented
    operands, gathered = _with_positions_met(call, operands)
    if not sources_of(operands):
        return compute(*operands)
    label, shard = _sharded_label(call, operands, labels)
    if label not in out and shard.split.keeps_some:
        raise call.refuse(operands)
    if label not in out:
        _check_no_bottleneck(call, operands, labels, label, shard)
    local = [
        _local(call, operand, names, label, shard, met_already=place in gathered)
        for place, (operand, names) in enumerate(zip(operands, labels, strict=True))
    ]
    joined = Shard(dim=0, split=shard.split, sources=sources_of(operands, local), unit=shard.unit)
    result = compute(*local)
    if label not in out:
        if _is_of_experts(call, operands):
            return call.interpreter.owe(result)
        return call.interpreter.sum_products(result, operands)
    dim = list(out).index(label)
    return with_shard(result, Shard(dim=dim, split=joined.split, sources=joined.sources, unit=joined.unit))


def _is_of_experts(call: Call, operands: list[Tensor]) -> bool:
    """Whether the product is one of a token with its expert, whose results are yet to be weighed and added.

    Only these go on as summands: other results may be what a block gives to the next, where hooks of other kinds of
    parallelism take hold of tensors.
    """
    if call.name in ("bmm", "_grouped_mm", "grouped_mm"):
        return True
    bases = (operand._base for operand in operands)
    return any(base is not None and base.ndim == 3 and base.is_leaf for base in bases)


def _check_no_bottleneck(
    call: Call, operands: list[Tensor], labels: Sequence[Labels], label: str, shard: Shard
) -> None:
    """Leave the first of two low-rank factors whole while planning, so that the second is cut by its outputs.

    The other way round, what comes out of the bottleneck (queries, keys, decays) would be whole on every rank, and
    so would everything that follows.
    """
    for operand, names in zip(operands, labels, strict=True):
        if call.interpreter.decider is None or origin_of(operand) is None or label not in names:
            continue
        width = math.prod(size for size, name in zip(operand.shape, names, strict=True) if name != label)
        if operand.ndim == 2 and _BOTTLENECK * shard.split.total < width:
            raise call.refuse([other for other in operands if other is not operand])


def _with_a_column(call: Call, operands: list[Tensor], labels: Sequence[Labels], out: Labels) -> list[Tensor]:
    """Cut one undecided parameter along a dim that only it brings into the result."""
    decider = call.interpreter.decider
    if decider is None:
        return operands
    for place in reversed(range(len(operands))):
        if origin_of(operands[place]) is None:
            continue
        others = {name for other, names in enumerate(labels) if other != place for name in names}
        for dim, name in enumerate(labels[place]):
            if name in out and name not in others:
                local = decider.column(operands[place], dim)
                if local is not None:
                    return [*operands[:place], local, *operands[place + 1 :]]
    return operands


def _sharded_label(call: Call, operands: list[Tensor], labels: Sequence[Labels]) -> tuple[str, Shard]:
    found: list[tuple[str, Shard]] = []
    for operand, names in zip(operands, labels, strict=True):
        shard = shard_of(operand)
        if shard is None:
            continue
        if found and (names[shard.dim] != found[0][0] or shard.split != found[0][1].split):
            raise call.refuse(operand)
        found.append((names[shard.dim], shard))
    return found[0]


def _with_positions_met(call: Call, operands: list[Tensor]) -> tuple[list[Tensor], set[int]]:
    """Gather shares of positions before a matrix that is cut, or a whole one that makes them wider.

    Returns:
        The operands, and which of them were gathered for a cut matrix: their gradients are summed already.
    """
    tokens = call.interpreter.tokens
    places = [place for place, operand in enumerate(operands) if is_token_shard(operand)]
    if tokens is None or not places:
        return operands, set()
    others = [operand for place, operand in enumerate(operands) if place not in places]
    if sources_of(others):
        met_operands = [tokens.gather(each) if place in places else each for place, each in enumerate(operands)]
        return met_operands, set(places)
    widens = any(other.ndim == 2 and max(other.shape) > operands[places[0]].shape[-1] for other in others)
    if not widens:
        return operands, set()
    return [tokens.gather_for_all(each) if place in places else each for place, each in enumerate(operands)], set()


def _local(call: Call, operand: Tensor, names: Labels, label: str, shard: Shard, *, met_already: bool) -> Tensor:
    if shard_of(operand) is not None:
        return operand
    if met_already:
        there = label in names
        rank = call.interpreter.line.rank
        return take(operand, list(names).index(label), shard.split, rank) if there else operand
    if label in names and operand.shape[list(names).index(label)] == shard.split.total:
        return call.interpreter.share(operand, list(names).index(label), shard.split)
    met_shards: Tensor = call.interpreter.spread(operand)
    return met_shards


def add_bias(call: Call, result: Tensor, bias: Tensor | None, dim: int = -1) -> Tensor:
    """Add a bias along ``dim``: cut with a sharded result, once to a whole one."""
    if bias is None:
        return result
    shard = shard_of(result)
    place = dim % result.ndim
    result = call.interpreter.summed(result)
    if shard is None:
        if shard_of(bias) is not None:
            raise call.refuse(bias)
        return result + _along(bias, result.ndim, place)
    if shard_of(bias) is not None:
        if shard.dim != place or shard_of(bias).split != shard.split:  # type: ignore[union-attr]
            raise call.refuse(bias)
        local = bias
    else:
        local = met(call, bias, shard, -1) if shard.dim == place else call.interpreter.spread(bias)
    return with_shard(result + _along(local, result.ndim, place), shard)


def _along(bias: Tensor, ndim: int, dim: int) -> Tensor:
    return bias if bias.ndim != 1 else bias.view([-1, *[1] * (ndim - 1 - dim)])
