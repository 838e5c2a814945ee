"""The attentions that talk to the other ranks of a sequence: keys passed round, or heads exchanged for positions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.interpret.collective import Line, exchange
from trireme.interpret.context_kernel import Mixed, normalised
from trireme.interpret.context_tile import Backward, Keys, Sight, mix
from trireme.interpret.sequence_collective import positions, reorder, take_positions
from trireme.interpret.sequence_split import local_ranges
from trireme.interpret.split import Split
from trireme.interpret.torch_private import DisableTorchFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The ranks in a circle: what comes from the one before goes on to the next."""

    line: Line
    split: Split

    def owner(self, step: int) -> int:
        """Give whose keys are at hand after so many steps."""
        return (self.line.rank - step) % self.line.degree

    def keys(self, packed: Tensor, width: int, step: int, *, with_positions: bool) -> Keys:
        """Give keys and values laid beside each other as a block to attend to."""
        owner = self.owner(step)
        return Keys(
            key=packed[..., :width],
            value=packed[..., width:],
            ranges=local_ranges(self.split, owner),
            positions=positions(self.split, owner, packed.device) if with_positions else None,
        )

    def start(self, tensor: Tensor, step: int, *, where: str) -> Passing:
        """Begin to pass a tensor on, and to receive the one of the rank before."""
        line = self.line
        shape = list(tensor.shape)
        shape[-2] = self.split.length(self.owner(step + 1))
        received = tensor.new_empty(shape)
        line.count.add(f"send {where}", tensor)
        if line.group is None:
            return Passing(received=received, works=[])
        after, before = ((line.rank + way) % line.degree for way in (1, -1))
        ranks = [dist.get_global_rank(line.group, each) for each in (after, before)]
        sending = dist.P2POp(dist.isend, tensor, ranks[0], line.group)
        receiving = dist.P2POp(dist.irecv, received, ranks[1], line.group)
        return Passing(received=received, works=dist.batch_isend_irecv([sending, receiving]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """A tensor under way."""

    received: Tensor
    works: list[Any]

    def wait(self) -> Tensor:
        """Give it once it is there."""
        for work in self.works:
            work.wait()
        return self.received


def _passed_round(ring: Ring, packed: Tensor, width: int, *, with_positions: bool) -> Iterator[Keys]:
    """Yield every rank's keys in turn; the next ones travel while these are used."""
    for step in range(ring.line.degree):
        last = step + 1 == ring.line.degree
        coming = None if last else ring.start(packed, step, where="forward")
        yield ring.keys(packed, width, step, with_positions=with_positions)
        if coming is not None:
            packed = coming.wait()


class _RingAttention(torch.autograd.Function):
    """Scores are made again in backward, block by block, from the sum of all weights."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: Ring, sight: Sight, mask: Any) -> Tensor:
        packed = torch.cat((key, value), -1).contiguous()
        blocks = _passed_round(ring, packed, key.shape[-1], with_positions=mask is not None)
        result = mix(query, blocks, sight)
        out = normalised(result, query.dtype)
        ctx.save_for_backward(query, packed, out, *result, *([] if mask is None else [mask]))
        ctx.ring, ctx.width, ctx.sight = ring, key.shape[-1], sight
        ctx.wants_mask = mask is not None and ctx.needs_input_grad[5]
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with DisableTorchFunction():
            query, packed, out, mixed, highest, total, *mask = ctx.saved_tensors
            work = _backward(grads[0], query, out, Mixed(mixed, highest, total), ctx.sight, mask, ctx.wants_mask)
            grad_packed = _ring_backward(ctx.ring, packed, ctx.width, work, with_positions=bool(mask))
            key, value = grad_packed[..., : ctx.width], grad_packed[..., ctx.width :]
            return (
                work.grad_query.to(query.dtype),
                key.to(packed.dtype),
                value.to(packed.dtype),
                None,
                None,
                work.grad_mask,
            )


def _backward(
    grad: Tensor, query: Tensor, out: Tensor, result: Mixed, sight: Sight, mask: list[Tensor], wants_mask: bool
) -> Backward:
    return Backward(
        grad=grad,
        query=query,
        out=out,
        result=result,
        sight=sight,
        grad_query=torch.zeros_like(query, dtype=result.total.dtype),
        grad_mask=torch.zeros_like(mask[0]) if wants_mask else None,
    )


def _ring_backward(ring: Ring, packed: Tensor, width: int, work: Backward, *, with_positions: bool) -> Tensor:
    """Pass keys round again, and with them the gradients that each rank adds to; they end where they belong."""
    degree = ring.line.degree
    gathering: Passing | None = None
    for step in range(degree):
        coming = None if step + 1 == degree else ring.start(packed, step, where="backward")
        found = torch.cat(work.block(ring.keys(packed, width, step, with_positions=with_positions)), -1)
        total = found if gathering is None else gathering.wait().add_(found)
        gathering = ring.start(total.contiguous(), step, where="backward")
        if coming is not None:
            packed = coming.wait()
    assert gathering is not None
    return gathering.wait()


def ring_attention(query: Tensor, key: Tensor, value: Tensor, ring: Ring, sight: Sight) -> Tensor:
    """Attend to the keys of all ranks, passed round."""
    return exchange(_RingAttention, query, key, value, ring, sight, sight.mask)


class _WholeKeys(torch.autograd.Function):
    """Causal attention of a rank's runs of queries to keys that are all there."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, keys_split: Split, sight: Sight) -> Tensor:
        ctx.ranges = local_ranges(keys_split, 0)
        result = mix(query, [Keys(key=key, value=value, ranges=ctx.ranges, positions=None)], sight)
        out = normalised(result, query.dtype)
        ctx.save_for_backward(query, key, value, out, *result)
        ctx.sight = sight
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        with DisableTorchFunction():
            query, key, value, out, *result = ctx.saved_tensors
            work = _backward(grads[0], query, out, Mixed(*result), ctx.sight, [], False)
            grad_key, grad_value = work.block(Keys(key=key, value=value, ranges=ctx.ranges, positions=None))
            return work.grad_query.to(query.dtype), grad_key.to(key.dtype), grad_value.to(value.dtype), None, None


def causal_attention(query: Tensor, key: Tensor, value: Tensor, sight: Sight) -> Tensor:
    """Attend causally to keys that are all there, without a score for any key that isn't seen."""
    alone = Split(parts=((key.shape[-2],),))
    return exchange(_WholeKeys, query, key, value, alone, sight)


class _HeadsForPositions(torch.autograd.Function):
    """``[B, H, T/n, K]`` to ``[B, H/n, T, K]``; the other way in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split: Split, line: Line) -> Tensor:
        ctx.place = split, line
        return _to_heads(tensor, split, line, where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        with DisableTorchFunction():
            return _to_positions(grads[0], *ctx.place, where="backward"), None, None


class _PositionsForHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split: Split, line: Line) -> Tensor:
        ctx.place = split, line
        return _to_positions(tensor, split, line, where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        with DisableTorchFunction():
            return _to_heads(grads[0], *ctx.place, where="backward"), None, None


def _to_heads(tensor: Tensor, split: Split, line: Line, *, where: str) -> Tensor:
    """Send each rank its heads of this rank's positions."""
    by_rank = torch.unflatten(tensor.movedim(-2, 0), -2, (line.degree, -1)).movedim(-3, 0).contiguous()
    rest = by_rank.shape[2:]
    lengths = [split.length(rank) for rank in range(line.degree)]
    mine = lengths[line.rank]
    received = _all_to_all(by_rank.flatten(0, 1), [mine] * line.degree, lengths, line, where)
    whole = reorder(received, split, line.degree)
    return whole.view(-1, *rest).movedim(0, -2)


def _to_positions(tensor: Tensor, split: Split, line: Line, *, where: str) -> Tensor:
    """Send each rank its positions of this rank's heads."""
    first = tensor.movedim(-2, 0)
    lengths = [split.length(rank) for rank in range(line.degree)]
    shares = torch.cat([take_positions(first, 0, split, rank) for rank in range(line.degree)])
    received = _all_to_all(shares.contiguous(), lengths, [lengths[line.rank]] * line.degree, line, where)
    by_rank = received.view(line.degree, lengths[line.rank], *first.shape[1:])
    return by_rank.movedim(0, -3).flatten(-3, -2).movedim(0, -2)


def _all_to_all(tensor: Tensor, sizes_out: list[int], sizes_in: list[int], line: Line, where: str) -> Tensor:
    received = tensor.new_empty((sum(sizes_in), *tensor.shape[1:]))
    line.count.add(f"all_to_all {where}", tensor)
    if line.group is not None:
        dist.all_to_all_single(received, tensor, sizes_in, sizes_out, group=line.group)
    return received


def heads_for_positions(tensor: Tensor, split: Split, line: Line) -> Tensor:
    """Give all positions of this rank's share of the heads."""
    return exchange(_HeadsForPositions, tensor, split, line)


def positions_for_heads(tensor: Tensor, split: Split, line: Line) -> Tensor:
    """Give this rank's positions of all heads."""
    return exchange(_PositionsForHeads, tensor, split, line)
