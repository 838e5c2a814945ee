"""Collectives along a sequence dim, where the gradients of whole tensors are partial: they add up to the true one.

So what is gathered forward is reduce-scattered backward, and a sum over positions is a sum backward too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.interpret.collective import Line, exchange
from trireme.interpret.sequence_split import local_ranges, order_of_ranks
from trireme.interpret.split import Split

_FEW_RANGES = 4
"""Up to so many runs of positions are copied one by one; more are picked by index."""


def _index(places: tuple[int, ...], device: torch.device) -> Tensor:
    # What a program that is being traced makes belongs to it alone.
    return (_made_index if torch.compiler.is_compiling() else _kept_index)(places, device)


def _made_index(places: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(places, dtype=torch.int64, device=device)


_kept_index = lru_cache(maxsize=256)(_made_index)


@lru_cache(maxsize=1024)
def _positions(split: Split, rank: int) -> tuple[int, ...]:
    return tuple(
        position for start, _, length in local_ranges(split, rank) for position in range(start, start + length)
    )


def positions(split: Split, rank: int, device: torch.device) -> Tensor:
    """Give the positions in the whole sequence of a rank's elements."""
    return _index(_positions(split, rank), device)


def take_positions(tensor: Tensor, dim: int, split: Split, rank: int) -> Tensor:
    """Give a rank's share of a whole tensor."""
    ranges = local_ranges(split, rank)
    if len(ranges) > _FEW_RANGES:
        return tensor.index_select(dim, positions(split, rank, tensor.device))
    pieces = [tensor.narrow(dim, start, length) for start, _, length in ranges] or [tensor.narrow(dim, 0, 0)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def all_gather(tensor: Tensor, dim: int, split: Split, line: Line, *, where: str) -> Tensor:
    """Give the whole tensor, in the order of positions, from every rank's share; unequal shares travel padded."""
    if tensor.dtype == torch.bool:
        return all_gather(tensor.view(torch.uint8), dim, split, line, where=where).view(torch.bool)
    first = tensor.movedim(dim, 0)
    longest = max(split.length(rank) for rank in range(line.degree))
    shares = first.new_empty((line.degree * longest, *first.shape[1:]))
    line.count.add(f"all_gather {where}", shares)
    if line.group is not None:
        dist.all_gather_single(shares, _padded(first, longest), group=line.group)
    places = _padded_order(split, line.degree, longest)
    whole = shares if places is None else shares.index_select(0, _index(places, tensor.device))
    return _in_place_of(whole, 0, dim)


def reduce_scatter(tensor: Tensor, dim: int, split: Split, line: Line, *, where: str) -> Tensor:
    """Sum the ranks' whole tensors and give this rank's share."""
    first = tensor.movedim(dim, 0)
    longest = max(split.length(rank) for rank in range(line.degree))
    shares = torch.cat([_padded(take_positions(first, 0, split, rank), longest) for rank in range(line.degree)])
    line.count.add(f"reduce_scatter {where}", shares)
    mine = shares.new_empty((longest, *first.shape[1:]))
    if line.group is not None:
        dist.reduce_scatter_single(mine, shares, group=line.group)
    length = split.length(line.rank)
    return _in_place_of(mine if length == longest else mine[:length], 0, dim)


def _in_place_of(tensor: Tensor, source: int, target: int) -> Tensor:
    """Move a dim and lay the result out as code expects what it computes: in order, and no view of anything."""
    if source == target and tensor._base is None:
        return tensor
    return tensor.movedim(source, target).clone(memory_format=torch.contiguous_format)


def reorder(shares: Tensor, split: Split, degree: int) -> Tensor:
    """Put the ranks' shares, laid end to end along dim 0, into the order of positions."""
    places = order_of_ranks(split, degree)
    return shares if places is None else shares.index_select(0, _index(places, shares.device))


def _padded(first: Tensor, length: int) -> Tensor:
    missing = length - first.shape[0]
    return (torch.cat((first, first.new_zeros((missing, *first.shape[1:])))) if missing else first).contiguous()


@lru_cache(maxsize=1024)
def _padded_order(split: Split, degree: int, longest: int) -> tuple[int, ...] | None:
    """Give the places of positions in padded shares laid end to end; None if they are in order."""
    order = order_of_ranks(split, degree)
    if all(split.length(rank) == longest for rank in range(degree)):
        return order
    starts = [0]
    for rank in range(degree):
        starts.append(starts[-1] + split.length(rank))
    places = list(range(split.total)) if order is None else list(order)
    shifts = [rank * longest - starts[rank] for rank in range(degree) for _ in range(split.length(rank))]
    return tuple(place + shifts[place] for place in places)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
        ctx.place = dim, split, line
        return all_gather(tensor, dim, split, line, where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return reduce_scatter(grads[0], *ctx.place, where="backward"), None, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
        ctx.place = dim, split, line
        return reduce_scatter(tensor, dim, split, line, where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return all_gather(grads[0], *ctx.place, where="backward"), None, None, None


class _Share(torch.autograd.Function):
    """This rank's share of a whole tensor whose gradient is to be complete on every rank."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
        ctx.place = dim, split, line
        return take_positions(tensor, dim, split, line.rank).clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return all_gather(grads[0], *ctx.place, where="backward"), None, None, None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, line: Line) -> Tensor:
        ctx.line = line
        return line.all_reduce(tensor.clone(memory_format=torch.contiguous_format), where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.line.all_reduce(grads[0].clone(memory_format=torch.contiguous_format), where="backward"), None


def gather_positions(tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
    """Make a share whole: all-gather forward, reduce-scatter of the partial gradients backward."""
    return exchange(_Gather, tensor, dim, split, line)


def scatter_partial(tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
    """Sum partial results into shares: reduce-scatter forward, all-gather backward."""
    return exchange(_Scatter, tensor, dim, split, line)


def share_positions(tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
    """Take this rank's share of a whole tensor: nothing to send forward, all-gather backward."""
    return exchange(_Share, tensor, dim, split, line)


def sum_parts(tensor: Tensor, line: Line) -> Tensor:
    """Sum what each rank has of its positions, for use by all: all-reduce forward and backward."""
    return exchange(_SumParts, tensor, line)
