"""``x[...]``: whole slices keep the shard; on the sharded dim only runs of whole segments can be taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call, sharded, the_shard
from trireme.interpret.embedding import embedding
from trireme.interpret.pointwise import met
from trireme.interpret.section import by_element, part
from trireme.interpret.tensor_state import global_shape, shard_of

_WHOLE = slice(None)


def getitem(call: Call) -> Any:
    """Index with integers, slices, None, ``...`` and at most one tensor of integers."""
    x, index = call.args
    if shard_of(x) is None:
        raise call.refuse(index)
    entries = list(index) if isinstance(index, tuple) else [index]
    if len(entries) == 1 and isinstance(entries[0], Tensor) and _is_row_lookup(x, entries[0]):
        looked_up = Call(interpreter=call.interpreter, function=F.embedding, args=(entries[0], x), kwargs={})
        return embedding(looked_up)
    return _indexed(call, x, whole_entries(call, x, index))


def whole_entries(call: Call, x: Tensor, index: Any) -> list[Any]:
    """Give an index as one entry a dim, integers and slices, beside None for new dims; refuse any other."""
    entries = list(index) if isinstance(index, tuple) else [index]
    entries = _with_slices(_without_ellipsis(entries, x.ndim), global_shape(x))
    if not _is_plain(entries):
        raise call.refuse(x)
    return entries


def _is_row_lookup(x: Tensor, index: Tensor) -> bool:
    return x.ndim == 2 and the_shard(x).dim == 0 and index.dtype in (torch.int64, torch.int32)


def _is_plain(entries: list[Any]) -> bool:
    """Integers and slices, or slices and one tensor: with both, torch moves the indexed dims to the front."""
    known = all(entry is None or isinstance(entry, (int, slice, Tensor)) for entry in entries)
    tensors = sum(isinstance(entry, Tensor) for entry in entries)
    return known and tensors <= 1 and not (tensors and any(isinstance(entry, int) for entry in entries))


def _without_ellipsis(entries: list[Any], ndim: int) -> list[Any]:
    used = sum(entry is not None and entry is not Ellipsis for entry in entries)
    filled: list[Any] = []
    for entry in entries:
        filled += [_WHOLE] * (ndim - used) if entry is Ellipsis else [entry]
    named = sum(entry is not None for entry in filled)
    return filled + [_WHOLE] * (ndim - named)


def _with_slices(entries: list[Any], sizes: Sequence[int]) -> list[Any]:
    """Write a list of one integer, which keeps its dim, as the slice that it is."""
    result, dim = [], 0
    for entry in entries:
        if isinstance(entry, list) and len(entry) == 1 and isinstance(entry[0], int):
            first = entry[0] % sizes[dim]
            entry = slice(first, first + 1)
        result.append(entry)
        dim += entry is not None
    return result


def _indexed(call: Call, x: Tensor, entries: list[Any]) -> Tensor:
    shard = the_shard(x)
    place = _place_of(entries, shard.dim)
    entry = entries[place]
    if isinstance(entry, slice) and entry.step not in (None, 1):
        return _every(call, x, entries, place)
    if isinstance(entry, slice):
        start, end, _ = entry.indices(shard.split.total)
        if (start, end) != (0, shard.split.total):
            x = part(call, x, shard.dim, start, max(start, end))
        entries[place] = _WHOLE
        if shard_of(x) is None:
            return x[tuple(entries)]
    elif isinstance(entry, int):
        raise by_element(call, x)
    else:
        raise call.refuse(x)
    new_dim = sum(_width(call, x, each) for each in entries[:place])
    return sharded(x[tuple(entries)], the_shard(x), dim=new_dim)


def _every(call: Call, x: Tensor, entries: list[Any], place: int) -> Tensor:
    """Take every nth element of the sharded dim: shares of whole groups of n give shares of the result."""
    shard, entry = the_shard(x), entries[place]
    start, end, step = entry.indices(shard.split.total)
    if step < 1 or start >= step or end != shard.split.total:
        raise call.refuse(x)
    divided = shard.split.divided(step)
    if divided is None:
        raise call.refuse(x, grain=step, unit=shard.unit)
    entries[place] = slice(start, None, step)
    new_dim = sum(_width(call, x, each) for each in entries[:place])
    return sharded(x[tuple(entries)], shard, dim=new_dim, split=divided, unit=shard.unit * step)


def setitem(call: Call) -> Any:
    """``x[index] = value`` where the sharded dim is taken whole."""
    x, index, value = call.args
    if shard_of(x) is None:
        raise call.refuse(index, value)
    shard = the_shard(x)
    entries = _without_ellipsis(list(index) if isinstance(index, tuple) else [index], x.ndim)
    if not _is_plain(entries) or entries[_place_of(entries, shard.dim)] != _WHOLE:
        raise call.refuse(x, value)
    place = _place_of(entries, shard.dim)
    num_dims = sum(_width(call, x, each) for each in entries)
    from_right = sum(_width(call, x, each) for each in entries[:place]) - num_dims
    if isinstance(value, Tensor):
        known = shard_of(value)
        if known is not None and (known.dim - value.ndim, known.split) != (from_right, shard.split):
            raise call.refuse(value)
        value = met(call, value, shard, from_right)
    x[tuple(entries)] = value
    return None


def _place_of(entries: list[Any], dim: int) -> int:
    """Find the entry that stands for a dim; None stands for none."""
    dims = [place for place, entry in enumerate(entries) if entry is not None]
    return dims[dim]


def _width(call: Call, x: Tensor, entry: Any) -> int:
    """How many dims of the result an entry makes."""
    if isinstance(entry, bool):
        raise call.refuse(x)
    if isinstance(entry, int):
        return 0
    if isinstance(entry, Tensor):
        if entry.dtype not in (torch.int64, torch.int32):
            raise call.refuse(x)
        return entry.ndim
    return 1


def index_select(call: Call) -> Any:
    """Take elements of a dim that isn't sharded."""
    x = call.args[0]
    shard = the_shard(x)
    if call.get(1, "dim") % x.ndim == shard.dim:
        raise call.refuse(x)
    return sharded(call.run(*call.args), shard, dim=shard.dim)
