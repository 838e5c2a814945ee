"""What differs where positions are cut instead of parameters: any part of a sequence is again a cut sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call, sharded, the_shard
from trireme.interpret.indexing import whole_entries
from trireme.interpret.sequence_collective import take_positions
from trireme.interpret.sequence_split import owned_by, part_of
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import global_shape, map_tensors, shard_of, sources_of, tensors_in, with_shard

_WHOLE = slice(None)


def part(call: Call, x: Tensor, dim: int, start: int, end: int) -> Tensor:
    """Give ``x[start:end]`` along a dim; positions stay on their ranks."""
    shard = the_shard(x)
    if dim != shard.dim:
        return sharded(x.narrow(dim, start, end - start), shard, dim=shard.dim)
    if (start, end) == (0, shard.split.total):
        return x
    rank = call.interpreter.line.rank
    before = part_of(shard.split, 0, start).length(rank) if start else 0
    kept = part_of(shard.split, start, end)
    return sharded(x.narrow(dim, before, kept.length(rank)), shard, dim=dim, split=kept)
    # narrow() is right because a rank's positions ascend: those before ``start`` come first.


def narrow(call: Call) -> Any:
    """``x.narrow(dim, start, length)``."""
    x = call.args[0]
    dim = call.get(1, "dim") % x.ndim
    start, length = call.get(2, "start"), call.get(3, "length")
    if not isinstance(start, int):
        raise call.refuse(x)
    start %= global_shape(x)[dim]
    return part(call, x, dim, start, start + length)


def split(call: Call) -> Any:
    """``x.split(size or sizes, dim)``."""
    x = call.args[0]
    dim = call.get(2, "dim", default=0) % x.ndim
    sizes = call.get(1, "split_size_or_sections", "split_size", "split_sizes")
    return _sections(call, x, dim, sizes)


def chunk(call: Call) -> Any:
    """``x.chunk(chunks, dim)``."""
    x = call.args[0]
    dim = call.get(2, "dim", default=0) % x.ndim
    return _sections(call, x, dim, -(-global_shape(x)[dim] // call.get(1, "chunks")))


def _sections(call: Call, x: Tensor, dim: int, sizes: int | Sequence[int]) -> tuple[Tensor, ...]:
    length = global_shape(x)[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, length - start) for start in range(0, length, sizes)]
    return tuple(part(call, x, dim, start, end) for start, end in pairwise([0, *accumulate(sizes)]))


def cat(call: Call) -> Any:
    """Join tensors; whole ones that are joined to a sequence lie on the first rank."""
    tensors = list(call.get(0, "tensors"))
    first = next(tensor for tensor in tensors if shard_of(tensor) is not None)
    shard = the_shard(first)
    dim = call.get(1, "dim", "axis", default=0) % first.ndim
    if dim != shard.dim:
        joined = torch.cat([_cut_alike(call, tensor, shard) for tensor in tensors], dim)
        return with_shard(joined, Shard(dim=shard.dim, split=shard.split, sources=sources_of(tensors)))
    if any(other.dim != dim for tensor in tensors if (other := shard_of(tensor)) is not None):
        raise call.refuse(tensors)
    parts: list[tuple[int, ...]] = []
    for place, tensor in enumerate(tensors):
        own = shard_of(tensor)
        if own is None:
            alone = owned_by(tensor.shape[dim], rank=0, degree=call.interpreter.line.degree)
            own = Shard(dim=dim, split=alone, sources=frozenset())
            tensors[place] = take_positions(tensor, dim, alone, call.interpreter.line.rank)
        parts += own.split.parts
    return with_shard(
        torch.cat(tensors, dim), Shard(dim=dim, split=Split(parts=tuple(parts)), sources=sources_of(tensors))
    )


def stack(call: Call) -> Any:
    """Join tensors along a new dim."""
    tensors = list(call.get(0, "tensors"))
    first = next(tensor for tensor in tensors if shard_of(tensor) is not None)
    shard = the_shard(first)
    dim = call.get(1, "dim", default=0) % (first.ndim + 1)
    joined = torch.stack([_cut_alike(call, tensor, shard) for tensor in tensors], dim)
    new_dim = shard.dim + (dim <= shard.dim)
    return with_shard(joined, Shard(dim=new_dim, split=shard.split, sources=sources_of(tensors)))


def _cut_alike(call: Call, tensor: Tensor, shard: Shard) -> Tensor:
    own = shard_of(tensor)
    if own is not None:
        if (own.dim, own.split) != (shard.dim, shard.split):
            raise call.refuse(tensor)
        return tensor
    return call.interpreter.share(tensor, shard.dim, shard.split)


def getitem(call: Call) -> Any:
    """Index: parts of the sequence stay cut, one position is given to all ranks, a lookup is cut like its index."""
    x, index = call.args
    shard = shard_of(x)
    if shard is None:
        return _looked_up(call, x, index)
    if isinstance(index, Tensor) and index.dtype == torch.bool:
        return _selected(call, x, index)
    entries = whole_entries(call, x, index)
    if any(isinstance(entry, Tensor) and (entry.dtype == torch.bool or shard_of(entry)) for entry in entries):
        raise call.refuse(x)
    place = [place for place, entry in enumerate(entries) if entry is not None][shard.dim]
    entry = entries[place]
    if isinstance(entry, slice) and entry.step in (None, 1):
        start, end, _ = entry.indices(shard.split.total)
        x = part(call, x, shard.dim, start, max(start, end))
        entries[place] = _WHOLE
    elif isinstance(entry, int) and not isinstance(entry, bool):
        return _one_position(call, x, entries, place, entry % shard.split.total)
    else:
        raise call.refuse(x)
    new_dim = sum(
        0 if isinstance(each, int) else each.ndim if isinstance(each, Tensor) else 1 for each in entries[:place]
    )
    return sharded(x[tuple(entries)], the_shard(x), dim=new_dim)


def _one_position(call: Call, x: Tensor, entries: list[Any], place: int, position: int) -> Tensor:
    """Give one position whole: the others add zero to what its rank has."""
    if any(isinstance(entry, Tensor) for entry in entries):
        raise call.refuse(x)
    local = part(call, x, the_shard(x).dim, position, position + 1)
    entries[place] = _WHOLE
    mine = local[tuple(entries)]
    dim = sum(not isinstance(entry, int) for entry in entries[:place])
    return call.interpreter.sum_partial(mine.sum(dim, dtype=mine.dtype))


def setitem(call: Call) -> Any:
    """``x[...] = value``: each rank writes what falls on its positions."""
    x, index, value = call.args
    if shard_of(x) is None:
        raise call.refuse(index, value)
    if isinstance(index, Tensor) and index.dtype == torch.bool and not isinstance(value, Tensor):
        return x.__setitem__(_mask_alike(call, x, index), value)
    shard, entries = the_shard(x), whole_entries(call, x, index)
    if any(isinstance(entry, Tensor) and (entry.dtype == torch.bool or shard_of(entry)) for entry in entries):
        raise call.refuse(x)
    place = [place for place, entry in enumerate(entries) if entry is not None][shard.dim]
    entry = entries[place]
    one = isinstance(entry, int) and not isinstance(entry, bool)
    if not one and not (isinstance(entry, slice) and entry.step in (None, 1)):
        raise call.refuse(x)
    start, end = (entry % shard.split.total,) * 2 if one else entry.indices(shard.split.total)[:2]
    kept = part_of(shard.split, start, end + one)
    before = part_of(shard.split, 0, start).length(call.interpreter.line.rank) if start else 0
    entries[place] = slice(before, before + kept.length(call.interpreter.line.rank))
    if isinstance(value, Tensor):
        after = _dims_after(entries, place)
        if one:
            value = call.interpreter.gather(value)
            value = value.unsqueeze(value.ndim - after) if value.ndim >= after else value
        value = _value_alike(call, value, after + 1, kept)
    return x.__setitem__(tuple(entries), value)


def _dims_after(entries: list[Any], place: int) -> int:
    return sum(
        0 if isinstance(each, int) else each.ndim if isinstance(each, Tensor) else 1 for each in entries[place + 1 :]
    )


def _mask_alike(call: Call, x: Tensor, mask: Tensor) -> Tensor:
    shard = the_shard(x)
    whole = call.interpreter.gather(mask)
    inside = shard.dim < whole.ndim
    return take_positions(whole, shard.dim, shard.split, call.interpreter.line.rank) if inside else whole


def _value_alike(call: Call, value: Tensor, from_right: int, kept: Split) -> Tensor:
    """Give the rows of a value that this rank writes."""
    dim = value.ndim - from_right
    own = shard_of(value)
    if own is not None and (own.dim, own.split) == (dim, kept):
        return value
    whole: Tensor = call.interpreter.gather(value)
    if dim < 0 or whole.shape[dim] == 1 != kept.total:
        return whole
    return take_positions(whole, dim, kept, call.interpreter.line.rank)


def _selected(call: Call, x: Tensor, mask: Tensor) -> Tensor:
    """Give what a boolean mask picks, each rank from its own positions; how many that are is read from the mask."""
    shard, rank = the_shard(x), call.interpreter.line.rank
    whole = call.interpreter.gather(mask)
    if shard.dim >= whole.ndim:
        return sharded(x[whole], shard, dim=shard.dim - whole.ndim + 1)
    local = take_positions(whole, shard.dim, shard.split, rank)
    by_position = whole.flatten(shard.dim + 1).sum(-1) if whole.ndim > shard.dim + 1 else whole.long()
    running = F.pad(by_position.reshape(-1, shard.split.total).cumsum(-1), (1, 0))
    ends = list(accumulate(size for part in shard.split.parts for size in part))
    counts = running[:, [0, *ends]].diff().tolist()
    degree = call.interpreter.line.degree
    parts = [tuple(row[first : first + degree]) for row in counts for first in range(0, len(row), degree)]
    return sharded(x[local], shard, dim=0, split=Split(parts=tuple(parts)))


def _looked_up(call: Call, x: Tensor, index: Any) -> Any:
    """Rows of a whole table, by positions that are cut."""
    if not isinstance(index, Tensor) or index.dtype == torch.bool:
        raise call.refuse(index)
    return sharded(x[index], the_shard(index), dim=the_shard(index).dim)


def embedding(call: Call) -> Any:
    """``F.embedding``: each rank looks up its own positions."""
    ids = call.get(0, "input")
    if shard_of(call.get(1, "weight")) is not None or call.get(3, "max_norm") is not None:
        raise call.refuse(call.args, call.kwargs)
    return sharded(call.function(*call.args, **call.kwargs), the_shard(ids), dim=the_shard(ids).dim)


def anew(call: Call) -> Any:
    """A new tensor of a given size, whole whatever ``x`` is."""
    return call.run(*call.args)


def drawn_like(call: Call) -> Any:
    """Random numbers of a tensor's size: those one device would draw."""
    x = call.args[0]
    shard = the_shard(x)
    options = {"dtype": x.dtype, "device": x.device, **call.kwargs}
    draw = {"rand_like": torch.rand, "randn_like": torch.randn}[call.name]
    return sharded(take_positions(draw(global_shape(x), **options), shard.dim, shard.split, call.interpreter.line.rank),
                   shard, dim=shard.dim)  # fmt: skip


def along(call: Call) -> Any:
    """What works along one other dim, each position alone: sorts, norms, maxima, gathering by index."""
    x = call.args[0] if call.args else call.kwargs["input"]
    if shard_of(x) is None:
        raise call.refuse(call.args, call.kwargs)
    shard = the_shard(x)
    dim = _dim_of(call, x)
    if dim == shard.dim:
        raise call.refuse(x)
    alike = {id(each): _index_alike(call, each, shard) for each in tensors_in(call.args, call.kwargs) if each is not x}

    def local(tensor: Tensor) -> Tensor:
        return alike.get(id(tensor), tensor)

    result = call.function(*map_tensors(call.args, local), **map_tensors(dict(call.kwargs), local))
    return map_tensors(result, lambda each: sharded(each, shard, dim=_new_dim(each, x, shard.dim, dim)))


def _dim_of(call: Call, x: Tensor) -> int:
    place = {"norm": 2, "topk": 2, "renorm": 2, "vector_norm": 2}.get(call.name, 1)
    default = {"sort": -1, "argsort": -1, "topk": -1, "normalize": 1, "glu": -1}.get(call.name)
    if call.name == "normalize":
        place = 2
    dim = call.get(place, "dim", default=default)
    if isinstance(dim, (list, tuple)) and len(dim) == 1:
        dim = dim[0]
    if not isinstance(dim, int) or isinstance(dim, bool):
        raise call.refuse(x)
    return dim % x.ndim


def _new_dim(result: Tensor, x: Tensor, cut: int, dim: int) -> int:
    return cut - (result.ndim < x.ndim and dim < cut)


def _index_alike(call: Call, tensor: Tensor, shard: Shard) -> Tensor:
    """Give an index or source that has the cut dim too, cut the same way."""
    if tensor.ndim == 0 or shard_of(tensor) is not None:
        own = shard_of(tensor)
        if own is not None and (own.dim, own.split) != (shard.dim, shard.split):
            raise call.refuse(tensor)
        return tensor
    if tensor.ndim <= shard.dim or tensor.shape[shard.dim] != shard.split.total:
        raise call.refuse(call.args, call.kwargs)
    return call.interpreter.share(tensor, shard.dim, shard.split)


def one_hot(call: Call) -> Any:
    """``F.one_hot`` of a given width: one dim more."""
    ids = call.args[0]
    if call.get(1, "num_classes", default=-1) == -1:
        raise call.refuse(ids)
    return sharded(call.run(*call.args), the_shard(ids), dim=the_shard(ids).dim)


def pad(call: Call) -> Any:
    """``F.pad`` of other dims."""
    x, sizes = call.get(0, "input"), call.get(1, "pad")
    shard = the_shard(x)
    place = 2 * (x.ndim - 1 - shard.dim)
    if any(sizes[place : place + 2]):
        raise call.refuse(x)
    return sharded(call.function(*call.args, **call.kwargs), shard, dim=shard.dim)


def cross_entropy(call: Call) -> Any:
    """``F.cross_entropy`` and ``F.nll_loss``: one loss a position, then the sum over all ranks."""
    logits, target, weight = call.get(0, "input"), call.get(1, "target"), call.get(2, "weight")
    class_dim = 1 if logits.ndim > 1 else 0
    shard = shard_of(logits)
    old_names = call.get(3, "size_average") is not None or call.get(5, "reduce") is not None
    if shard is None or shard.dim == class_dim or old_names:
        raise call.refuse(logits, target)
    by_class = target.is_floating_point()
    dim = shard.dim if by_class else shard.dim - (shard.dim > class_dim)
    own = _alike_at(call, target, dim, shard.split)
    reduction = call.get(6, "reduction", default="mean")
    ignored = call.get(4, "ignore_index", default=-100)
    extra = {"label_smoothing": call.get(7, "label_smoothing", default=0.0)} if call.name == "cross_entropy" else {}
    losses = call.function(logits, own, weight=weight, ignore_index=ignored, reduction="none", **extra)
    losses = sharded(losses, shard, dim=shard.dim - (shard.dim > class_dim))
    if reduction == "none":
        return losses
    total = call.interpreter.sum_partial(losses.sum())
    if reduction == "sum":
        return total
    if by_class:
        return total / global_shape(losses).numel()
    return total / _weight_of(call, target, weight, ignored).to(losses.dtype)


def _weight_of(call: Call, target: Tensor, weight: Tensor | None, ignored: int) -> Tensor:
    """Sum the weights of all targets that count; whole ones are counted without a word between ranks."""
    counted = target != ignored
    total = counted.sum() if weight is None else torch.where(counted, weight[target.clamp_min(0)], 0.0).sum()
    return total if shard_of(target) is None else call.interpreter.sum_partial(total)


def _alike_at(call: Call, tensor: Tensor, dim: int, cut: Split) -> Tensor:
    own = shard_of(tensor)
    if own is None:
        return call.interpreter.share(tensor, dim, cut)
    if (own.dim, own.split) != (dim, cut):
        return call.interpreter.share(call.interpreter.gather(tensor), dim, cut)
    return tensor


def elementwise_loss(call: Call) -> Any:
    """Losses of one term an element: the terms, then their sum or mean over all ranks."""
    tensors = list(tensors_in(call.args[:2], [call.kwargs.get("input"), call.kwargs.get("target")]))
    shard = next(own for each in tensors if (own := shard_of(each)) is not None)
    if len(tensors) != 2 or len({global_shape(each) for each in tensors}) != 1:
        raise call.refuse(call.args, call.kwargs)
    options = {name: value for name, value in call.kwargs.items() if name not in ("input", "target")}
    if len(call.args) > 2 or any(isinstance(value, Tensor) for value in options.values()):
        raise call.refuse(call.args, call.kwargs)
    reduction = options.pop("reduction", "mean")
    first, second = (_alike_at(call, each, shard.dim, shard.split) for each in tensors)
    terms = sharded(call.function(first, second, **options, reduction="none"), shard, dim=shard.dim)
    if reduction == "none":
        return terms
    total = call.interpreter.sum_partial(terms.sum())
    whole = global_shape(terms)
    return total if reduction == "sum" else total / (whole[0] if reduction == "batchmean" else whole.numel())


def token_rows(function: Callable[..., Any]) -> Callable[[Call], Any]:
    """Make the rule for one of this room's functions of rows and targets, each row alone."""

    def rule(call: Call) -> Any:
        rows, target, *rest = call.args
        shard = shard_of(rows) or shard_of(target)
        assert shard is not None
        local = [_alike_at(call, each, 0, shard.split) for each in (rows, target)]
        return sharded(function(*local, *rest), shard, dim=0)

    return rule
