"""Cutting a dim into sections and joining tensors again: sections of a sharded dim are whole segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from trireme.interpret.call import Call, sharded, the_shard
from trireme.interpret.collective import kept_by_all
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import global_shape, shard_of, sources_of


def split(call: Call) -> Any:
    """``x.split(size or sizes, dim)``."""
    x = call.args[0]
    dim = call.get(2, "dim", default=0) % x.ndim
    sizes = call.get(1, "split_size_or_sections", "split_size", "split_sizes")
    return _cut(call, x, dim, _sizes(global_shape(x)[dim], sizes))


def chunk(call: Call) -> Any:
    """``x.chunk(chunks, dim)``."""
    x = call.args[0]
    dim = call.get(2, "dim", default=0) % x.ndim
    length = global_shape(x)[dim]
    return _cut(call, x, dim, _sizes(length, -(-length // call.get(1, "chunks"))))


def tensor_split(call: Call) -> Any:
    """``x.tensor_split(sections or indices, dim)``."""
    x, given = call.args[0], call.get(1, "tensor_indices_or_sections", "sections", "indices")
    dim = call.get(2, "dim", default=0) % x.ndim
    length = global_shape(x)[dim]
    if isinstance(given, int):
        each, more = divmod(length, given)
        return _cut(call, x, dim, [each + (place < more) for place in range(given)])
    if not isinstance(given, (list, tuple)):
        raise call.refuse(x)
    ends = [*given, length]
    return _cut(call, x, dim, [end - start for start, end in zip([0, *ends], ends, strict=False)])


def unbind(call: Call) -> Any:
    """``x.unbind(dim)``."""
    x = call.args[0]
    shard = the_shard(x)
    dim = call.get(1, "dim", default=0) % x.ndim
    if dim == shard.dim:
        raise by_element(call, x)
    return tuple(sharded(each, shard, dim=shard.dim - (dim < shard.dim)) for each in x.unbind(dim))


def narrow(call: Call) -> Any:
    """``x.narrow(dim, start, length)``."""
    x = call.args[0]
    dim = call.get(1, "dim") % x.ndim
    start, length = call.get(2, "start"), call.get(3, "length")
    return part(call, x, dim, start, start + length)


def by_element(call: Call, x: Tensor) -> Exception:
    """Refuse to take single elements of the sharded dim; every element as a segment of its own would help."""
    shard = the_shard(x)
    total = shard.split.total
    return call.refuse(x, boundaries=tuple(range(1, total + 1)), unit=shard.unit)


def part(call: Call, x: Tensor, dim: int, start: int, end: int) -> Tensor:
    """Give ``x[start:end]`` along a dim."""
    shard = the_shard(x)
    if dim != shard.dim:
        return sharded(x.narrow(dim, start, end - start), shard, dim=shard.dim)
    total = shard.split.total
    sizes = [size for size in (start, end - start, total - end) if size]
    return _cut(call, x, dim, sizes)[1 if start else 0]


def _sizes(length: int, sizes: int | Sequence[int]) -> list[int]:
    if not isinstance(sizes, int):
        return list(sizes)
    return [min(sizes, length - start) for start in range(0, length, sizes)]


def _cut(call: Call, x: Tensor, dim: int, sizes: list[int]) -> tuple[Tensor, ...]:
    shard = the_shard(x)
    if dim != shard.dim:
        return tuple(sharded(each, shard, dim=shard.dim) for each in torch.split(x, sizes, dim))
    splits = _segments_of(call, x, shard, sizes)
    local = torch.split(x, [each.length(call.interpreter.line.rank) for each in splits], dim)
    return tuple(
        kept_by_all(each, call.interpreter.line) if cut.keeps_all else sharded(each, shard, dim=dim, split=cut)
        for each, cut in zip(local, splits, strict=True)
    )


def _segments_of(call: Call, x: Tensor, shard: Shard, sizes: list[int]) -> list[Split]:
    """Give each section its segments, or say where segments would have to end."""
    ends = list(accumulate(shard.split.segments))
    wanted = list(accumulate(sizes))
    if not set(wanted) <= set(ends):
        raise call.refuse(x, boundaries=tuple(sorted(set(wanted) | set(ends))), unit=shard.unit)
    places = [0, *(ends.index(end) + 1 for end in wanted)]
    return [Split(parts=shard.split.parts[a:b]) for a, b in pairwise(places)]


def cat(call: Call) -> Any:
    """Join tensors; along the sharded dim their segments are joined too."""
    tensors = call.get(0, "tensors")
    first = _first_shard(tensors)
    dim = call.get(1, "dim", "axis", default=0) % tensors[0].ndim
    if dim != first.dim:
        return _with_sources(torch.cat(_alike(call, tensors, first), dim), first, first.dim, first.split, tensors)
    shards = [shard_of(tensor) for tensor in tensors]
    if any(shard is None or shard.dim != dim for shard in shards):
        raise call.refuse(tensors)
    joined = Split(parts=tuple(part for shard in shards if shard is not None for part in shard.split.parts))
    return _with_sources(torch.cat(list(tensors), dim), first, dim, joined, tensors)


def stack(call: Call) -> Any:
    """Join tensors along a new dim."""
    tensors = call.get(0, "tensors")
    first = _first_shard(tensors)
    dim = call.get(1, "dim", default=0) % (tensors[0].ndim + 1)
    result = torch.stack(_alike(call, tensors, first), dim)
    return _with_sources(result, first, first.dim + (dim <= first.dim), first.split, tensors)


def _first_shard(tensors: Sequence[Tensor]) -> Shard:
    return next(shard for shard in map(shard_of, tensors) if shard is not None)


def _alike(call: Call, tensors: Sequence[Tensor], first: Shard) -> list[Tensor]:
    """Give local tensors that are all cut as the first shard is; whole ones are cut for it."""
    local = []
    for tensor in tensors:
        shard = shard_of(tensor)
        if shard is None and tensor.ndim > first.dim and tensor.shape[first.dim] == first.split.total:
            local.append(call.interpreter.share(tensor, first.dim, first.split))
        elif shard is not None and (shard.dim, shard.split) == (first.dim, first.split):
            local.append(tensor)
        else:
            raise call.refuse(tensor if shard is not None else tensors)
    return local


def _with_sources(tensor: Tensor, shard: Shard, dim: int, split: Split, joined: Sequence[Tensor]) -> Tensor:
    caused = Shard(dim=shard.dim, split=shard.split, sources=sources_of(joined), unit=shard.unit)
    return sharded(tensor, caused, dim=dim, split=split)
