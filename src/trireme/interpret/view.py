"""Views that merge and factor dims: the shard moves to the factor that its shares cover in whole rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from torch import Tensor

from trireme.interpret.call import Call, sharded, the_shard
from trireme.interpret.split import Split
from trireme.interpret.tensor_state import global_shape

_FEW_PARTS = 4
"""A leading factor up to this is taken for q, k, v or gate, up side by side; a larger one for heads."""


def view(call: Call) -> Any:
    """``x.view`` and ``x.reshape`` to a shape in global sizes."""
    x = call.args[0]
    wanted = call.listed(1, "shape", "size")
    if any(not isinstance(size, int) for size in wanted):
        raise call.refuse(x)
    return _viewed(call, x, wanted)


def flatten(call: Call) -> Any:
    """Merge neighbouring dims."""
    x = call.args[0]
    sizes = global_shape(x)
    start = call.get(1, "start_dim", default=0) % x.ndim
    end = call.get(2, "end_dim", default=-1) % x.ndim
    return _viewed(call, x, [*sizes[:start], math.prod(sizes[start : end + 1]), *sizes[end + 1 :]])


def unflatten(call: Call) -> Any:
    """Factor one dim."""
    x = call.args[0]
    sizes = list(global_shape(x))
    dim = call.get(1, "dim") % x.ndim
    factors = list(call.get(2, "sizes"))
    if -1 in factors:
        factors[factors.index(-1)] = sizes[dim] // -math.prod(factors)
    return _viewed(call, x, [*sizes[:dim], *factors, *sizes[dim + 1 :]])


def _viewed(call: Call, x: Tensor, wanted: Sequence[int]) -> Tensor:
    sizes = list(global_shape(x))
    shape = list(wanted)
    if -1 in shape:
        shape[shape.index(-1)] = math.prod(sizes) // -math.prod(shape)
    shard = the_shard(x)
    before, after = _group_of(call, x, sizes, shape)
    merged = _merged(shard.split, sizes, before, shard.dim)
    post = math.prod(sizes[dim] for dim in before if dim > shard.dim)
    dim, split, divisor = _factored(call, x, merged, shape, after, shard.unit / post)
    local = list(shape)
    local[dim] = split.length(call.interpreter.line.rank)
    result = x.view(local) if call.name == "view" else x.reshape(local)
    return sharded(result, shard, dim=dim, split=split, unit=shard.unit / post * divisor)


def _merged(split: Split, sizes: list[int], before: list[int], dim: int) -> Split:
    """Give the split of the sharded dim flattened together with its group."""
    pre = math.prod(sizes[each] for each in before if each < dim)
    post = math.prod(sizes[each] for each in before if each > dim)
    return Split(parts=split.scaled(post).parts * pre)


def _factored(
    call: Call, x: Tensor, split: Split, shape: list[int], after: list[int], unit: Fraction
) -> tuple[int, Split, int]:
    """Walk down the factors to the one that carries the shares; returns dim, split, elements of a row."""
    for place, dim in enumerate(after):
        row = math.prod(shape[each] for each in after[place + 1 :])
        if shape[dim] == 1 and place + 1 < len(after):
            continue
        divided = split.divided(row)
        if divided is not None:
            return dim, divided, row
        period = split.one_of(shape[dim])
        if period is None or period.total != row:
            raise _help(call, x, shape[dim], row, after[place + 1 :], shape, unit)
        split = period
    raise call.refuse(x)


def _help(
    call: Call, x: Tensor, factor: int, row: int, inner: list[int], shape: list[int], unit: Fraction
) -> Exception:
    """Say how the weight had to be cut: within each of a few leading parts, or by whole rows (heads)."""
    degree = call.interpreter.line.degree
    by_parts = factor <= _FEW_PARTS and factor % degree != 0 and len(inner) > 1 and shape[inner[0]] >= degree
    if by_parts:
        return call.refuse(x, boundaries=tuple(row * (part + 1) for part in range(factor)), unit=unit)
    return call.refuse(x, grain=row, unit=unit)


def _group_of(call: Call, x: Tensor, sizes: list[int], shape: list[int]) -> tuple[list[int], list[int]]:
    """Find which dims of the old and new shape the sharded dim takes part in."""
    dim = the_shard(x).dim
    for before, after in _groups(sizes, shape):
        if dim in before and after:
            return before, after
    raise call.refuse(x)


def _groups(old: list[int], new: list[int]) -> list[tuple[list[int], list[int]]]:
    """Pair runs of dims of equal product, shortest first."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        before, after = [i] if i < len(old) else [], [j] if j < len(new) else []
        a, b = math.prod(old[k] for k in before), math.prod(new[k] for k in after)
        i, j = i + 1, j + 1
        while a != b:
            if a < b and i < len(old):
                a, before, i = a * old[i], [*before, i], i + 1
            elif a > b and j < len(new):
                b, after, j = b * new[j], [*after, j], j + 1
            else:
                return groups
        groups.append((before, after))
    return groups


def expand(call: Call) -> Any:
    """Repeat dims of one without copying."""
    x = call.args[0]
    shard = the_shard(x)
    target = call.args[1] if call.name == "expand_as" else None
    shape = list(global_shape(target)) if target is not None else call.listed(1, "size")
    dim = shard.dim + len(shape) - x.ndim
    if shape[dim] not in (-1, shard.split.total):
        raise call.refuse(x)
    shape[dim] = x.shape[shard.dim]
    return sharded(x.expand(shape), shard, dim=dim)


def repeat(call: Call) -> Any:
    """Tile; the sharded dim itself only once."""
    x = call.args[0]
    shard = the_shard(x)
    times = call.listed(1, "repeats")
    dim = shard.dim + len(times) - x.ndim
    if times[dim] != 1:
        raise call.refuse(x)
    return sharded(x.repeat(times), shard, dim=dim)


def repeat_interleave(call: Call) -> Any:
    """Repeat each element in place, as key/value heads are for their groups."""
    x = call.args[0]
    shard = the_shard(x)
    times, dim = call.get(1, "repeats"), call.get(2, "dim")
    if not isinstance(times, int) or dim is None:
        raise call.refuse(x)
    result = x.repeat_interleave(times, dim)
    if dim % x.ndim != shard.dim:
        return sharded(result, shard, dim=shard.dim)
    return sharded(result, shard, dim=shard.dim, split=shard.split.scaled(times), unit=shard.unit / times)
