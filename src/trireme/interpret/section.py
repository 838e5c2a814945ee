"""Cutting a dim into sections and joining tensors again: sections of a sharded dim are whole segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from trireme.interpret.call import Call, sharded, the_shard
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
    return tuple(sharded(each, shard, dim=dim, split=cut) for each, cut in zip(local, splits, strict=True))


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
    shards = _alike(call, tensors)
    first = shards[0]
    dim = call.get(1, "dim", "axis", default=0) % tensors[0].ndim
    joined = Split(parts=tuple(part for shard in shards for part in shard.split.parts))
    if dim != first.dim:
        if any(shard.split != first.split for shard in shards):
            raise call.refuse(tensors)
        joined = first.split
    return _with_sources(torch.cat(list(tensors), dim), first, first.dim, joined, sources_of(tensors))


def stack(call: Call) -> Any:
    """Join tensors along a new dim."""
    tensors = call.get(0, "tensors")
    shards = _alike(call, tensors)
    first = shards[0]
    if any(shard.split != first.split for shard in shards):
        raise call.refuse(tensors)
    dim = call.get(1, "dim", default=0) % (tensors[0].ndim + 1)
    result = torch.stack(list(tensors), dim)
    return _with_sources(result, first, first.dim + (dim <= first.dim), first.split, sources_of(tensors))


def _alike(call: Call, tensors: Sequence[Tensor]) -> list[Shard]:
    """Give the shards of tensors that are all cut in the same dim."""
    shards = [shard_of(tensor) for tensor in tensors]
    found = [shard for shard in shards if shard is not None]
    if len(found) < len(shards) or any(shard.dim != found[0].dim for shard in found):
        raise call.refuse(tensors)
    return found


def _with_sources(tensor: Tensor, shard: Shard, dim: int, split: Split, sources: frozenset[str]) -> Tensor:
    joined = Shard(dim=shard.dim, split=shard.split, sources=sources, unit=shard.unit)
    return sharded(tensor, joined, dim=dim, split=split)
