"""The way of tokens to the ranks that own their experts, and back.

A token travels once for each expert chosen for it. Counts go first, so that every rank knows what will come; a rank
whose experts nobody chose takes part with no rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trireme.interpret import (
    Line,
    Split,
    apply_function,
    exchange_counts,
    exchange_rows,
    gather_tokens,
    in_backward,
    rows_unknown,
    take_tokens,
)
from trireme.parallel.expert_share import ExpertShare


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """Rows for this rank's experts.

    Attributes:
        rows: From all ranks, by rank and then by expert.
        experts: The number of each row's expert among those of this rank.
        weights: The rows' routing weights, where they travel.
        asked: Whether any rank called each expert, be it for no rows; where callers say so.
    """

    rows: Tensor
    experts: Tensor
    weights: Tensor | None
    asked: Tensor | None


Compute = Callable[[Incoming], Tensor]
"""What this rank's experts do: one result for each row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertRanks:
    """The ranks that share out experts, and those that hold the same tokens."""

    ep: Line
    tp: Line


@dataclass(slots=True, kw_only=True)
class ExpertTraffic:
    """What one set of experts was asked for by this rank, since it was last taken.

    Attributes:
        load: Tokens that chose each expert, those of equal tensor-parallel ranks counted on one of them.
        dropped: Choices beyond an expert's capacity.
    """

    load: Tensor | None = None
    dropped: int = 0

    def add(self, counts: Tensor) -> None:
        """Add the choices of one forward; a recomputed one was counted before."""
        if in_backward():
            return
        self.load = counts.clone() if self.load is None else self.load.add_(counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """Sends tokens of one set of experts.

    Attributes:
        capacity_ratio: Choices an expert takes from one rank, over an even share of them. None: all.
        weights_travel: Whether the experts' own code wants the routing weights; else results are weighted at home.
    """

    share: ExpertShare
    ranks: ExpertRanks
    capacity_ratio: float | None = None
    weights_travel: bool = False
    traffic: ExpertTraffic = field(default_factory=ExpertTraffic)

    def run(
        self,
        hidden_ND: Tensor,
        index_NK: Tensor,
        weights_NK: Tensor | None,
        *,
        compute: Compute,
        tokens_cut: bool,
        called: Tensor | None = None,
    ) -> Tensor:
        """Give the experts' weighted sum for each token; without weights, each choice's result.

        Args:
            hidden_ND: Tokens.
            index_NK: The experts chosen for each; a number past the last expert chooses none.
            weights_NK: The choices' weights.
            compute: What this rank's experts do.
            tokens_cut: Whether tensor-parallel ranks hold different tokens.
            called: Whether this rank calls each expert, be it for no rows.
        """
        tp = self.ranks.tp
        if tp.degree == 1 or tokens_cut or hidden_ND.shape[0] == 0:
            return self._sent(hidden_ND, index_NK, weights_NK, compute, called)
        split = _dealt(hidden_ND.shape[0], tp.degree)
        weights = None if weights_NK is None else take_tokens(weights_NK, split, tp)
        index = index_NK.narrow(0, *next(split.ranges(tp.rank)))
        mine = self._sent(take_tokens(hidden_ND, split, tp), index, weights, compute, called)
        choices = 1 if weights_NK is not None else index_NK.shape[1]
        return gather_tokens(mine, split.scaled(choices), tp)

    def _sent(
        self, hidden: Tensor, index: Tensor, weights: Tensor | None, compute: Compute, called: Tensor | None
    ) -> Tensor:
        ep, top_k = self.ranks.ep, index.shape[1]
        order, counts = self._by_expert(index)
        route = _agree(counts, called, self.share, ep)
        there = {"send": route.send, "receive": route.receive}
        # What chose no expert stands last.
        order = order[: sum(route.send)]
        flat = None if weights is None else weights.reshape(-1)[order]
        travels = flat is not None and self.weights_travel
        incoming = Incoming(
            rows=exchange_rows(hidden[order // top_k], ep, **there),
            experts=route.experts,
            weights=exchange_rows(flat, ep, **there) if flat is not None and travels else None,
            asked=route.asked,
        )
        with rows_unknown():
            results = _in_graph(compute(incoming), incoming)
        back = exchange_rows(results, ep, send=route.receive, receive=route.send)
        if flat is not None and not travels:
            back = back * flat[:, None]
        return _home(back, order, tokens=hidden.shape[0], top_k=top_k, summed=weights is not None)

    def _by_expert(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Give the choices in order of their experts, and how many choose each."""
        experts = self.share.num_experts
        flat = index.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=experts)[:experts]
        self.traffic.add(counts)
        if self.capacity_ratio is not None:
            return self._within_capacity(flat, order, counts)
        return order, counts

    def _within_capacity(self, flat: Tensor, order: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Keep the first choices of each expert; later tokens of the batch are the ones dropped."""
        assert self.capacity_ratio is not None
        room = math.ceil(self.capacity_ratio * flat.numel() / self.share.num_experts)
        kept = counts.clamp(max=room)
        order = order[: int(counts.sum())]
        place = torch.arange(order.numel(), device=order.device) - (counts.cumsum(0) - counts)[flat[order]]
        self.traffic.dropped += int((counts - kept).sum())
        return order[place < room], kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """Rows to and from each rank, the local expert of each row that comes in, and the experts anybody asked."""

    send: tuple[int, ...]
    receive: tuple[int, ...]
    experts: Tensor
    asked: Tensor | None


def _agree(counts: Tensor, called: Tensor | None, share: ExpertShare, ep: Line) -> _Route:
    said = counts if called is None else torch.stack((counts, called.to(counts)), 1)
    heard = exchange_counts(_by_owner(said, share), ep)[:, : share.length]
    asked = None
    if called is not None:
        asked, heard = heard[..., 1].sum(0) > 0, heard[..., 0]
    # The one place where the host waits: sizes must be known before anything is sent.
    send, receive = torch.stack((_by_owner(counts, share).sum(1), heard.sum(1))).tolist()
    local = torch.arange(share.length, device=counts.device).repeat(share.degree)
    return _Route(
        send=tuple(send),
        receive=tuple(receive),
        experts=local.repeat_interleave(heard.reshape(-1)),
        asked=asked,
    )


def _by_owner(per_expert: Tensor, share: ExpertShare) -> Tensor:
    """Give one row for each rank, padded where ranks own unequal numbers of experts."""
    return torch.nn.utils.rnn.pad_sequence(list(torch.split(per_expert, list(share.lengths))), batch_first=True)


def _home(back: Tensor, order: Tensor, *, tokens: int, top_k: int, summed: bool) -> Tensor:
    """Put results where their choices were made; summed in a fixed order, so that it is the same every time."""
    choices = back.new_zeros((tokens * top_k, *back.shape[1:])).index_copy(0, order, back)
    return choices.view(tokens, top_k, *back.shape[1:]).sum(1) if summed else choices


def _in_graph(results: Tensor, incoming: Incoming) -> Tensor:
    """Tie results to what came in: every rank must take part in every exchange of backward, rows or none."""
    tied = joined(results, *(each for each in (incoming.rows, incoming.weights) if each is not None))
    return tied.requires_grad_() if torch.is_grad_enabled() and not tied.requires_grad else tied


def joined(result: Tensor, *others: Tensor) -> Tensor:
    """Give ``result``, through which ``others`` get gradients of zero, beside what else they get."""
    if not any(each.requires_grad for each in others):
        return result
    tied: Tensor = apply_function(_Joined, result, *others)
    return tied


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, result: Tensor, *others: Tensor) -> Tensor:
        ctx.save_for_backward(*others)
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        needed = zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        return grads[0], *(torch.zeros_like(other) if wanted else None for other, wanted in needed)


def _dealt(length: int, degree: int) -> Split:
    """Deal tokens out to ranks; unlike a parameter's split, a rank may get none."""
    each, extra = divmod(length, degree)
    return Split(parts=(tuple(each + (rank < extra) for rank in range(degree)),))
