"""Faults inside the rooms that act: one function each is put out of order while a layout runs.

This file alone of the room reaches into others' files, by name, for what it breaks is nobody's interface. A place
that has moved is an error of its own, so that a fault can't quietly stop biting.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trireme.verify.stand import Stand


@contextmanager
def replicated_gradients_stay_partial(stand: Stand) -> Iterator[None]:
    """What all tensor-parallel ranks hold and meets their shards keeps each rank's own gradient."""

    def backward(ctx: Any, *grads: Any) -> tuple[Any, None]:
        stand.has_bitten = True
        return grads[0], None

    with _replaced("trireme.interpret.collective:_Spread.backward", staticmethod(backward)):
        yield


@contextmanager
def fused_matrices_in_one_piece(stand: Stand) -> Iterator[None]:
    """A fused matrix is cut into runs of neighbouring rows, not part by part and head by head."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def take(self: Any, whole: Any, *, rank: int) -> Any:
            right = original(self, whole, rank=rank)
            if self.dim is None or len(self.split.parts) < 2:
                return right
            stand.has_bitten = True
            length = right.shape[self.dim]
            start = min(rank * length, whole.shape[self.dim] - length)
            return whole.narrow(self.dim, start, length).contiguous()

        return take

    with _wrapped("trireme.interpret.tensor_plan:ParameterSplit.take", make):
        yield


@contextmanager
def bias_on_every_rank(stand: Stand) -> Iterator[None]:
    """Each tensor-parallel rank adds the bias before their results are summed."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def add_bias(call: Any, result: Any, bias: Any, dim: int = -1) -> Any:
            added = original(call, result, bias, dim)
            is_row_cut = bias is not None and _shard_of(result) is None and call.interpreter.decider is None
            if not is_row_cut:
                return added
            stand.has_bitten = True
            return added + (call.interpreter.line.degree - 1) * (added - result)

        return add_bias

    with _wrapped("trireme.interpret.matmul:add_bias", make):
        yield


@contextmanager
def first_bucket_not_summed(stand: Stand) -> Iterator[None]:
    """The first bucket of gradients is taken for summed."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(bucket: Any) -> Any:
            if bucket.index > 0:
                return original(bucket)
            stand.has_bitten = True
            return _Done()

        return exchange

    place = "trireme.parallel.replicate:Reducer.__init__"

    def init(original: Callable[..., Any]) -> Callable[..., Any]:
        def build(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            self.exchange = make(self.exchange)

        return build

    with _wrapped(place, init):
        yield


@contextmanager
def norm_of_this_rank(stand: Stand) -> Iterator[None]:
    """Each rank clips by the norm of what it holds."""

    class Alone:
        """The collectives, but for one."""

        def __getattr__(self, name: str) -> Any:
            if name == "is_initialized":
                stand.has_bitten = True
                return lambda: False
            return getattr(dist, name)

    with _replaced("trireme.parallel.norm:dist", Alone()):
        yield


@contextmanager
def tied_gradients_stay_apart(stand: Stand) -> Iterator[None]:
    """Stages that share a weight keep each its own part of the gradient."""

    def apart(self: Any) -> None:
        stand.has_bitten |= bool(self.holders)

    with _replaced("trireme.parallel.tie:TiedGradients.sum", apart):
        yield


@contextmanager
def parameters_meet_shards_unsummed(stand: Stand) -> Iterator[None]:
    """A norm's weight that sees a part of the heads or positions on each rank keeps each rank's gradient."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def spread(self: Any, value: Any) -> Any:
            if self.axis != "tp" or self.decider is not None or not isinstance(value, nn.Parameter):
                return original(self, value)
            stand.has_bitten = True
            return value

        return spread

    with _wrapped("trireme.interpret.interpreter:Interpreter.spread", make):
        yield


@contextmanager
def queries_of_the_first_rank(stand: Stand) -> Iterator[None]:
    """Causal attention takes every rank's queries for those of the first positions."""

    def runs(self: Any) -> Any:
        stand.has_bitten = True
        return _holder("trireme.interpret.sequence_split:local_ranges")[0].local_ranges(self.shard.split, 0)

    with _replaced("trireme.interpret.context_attention:_Attention._runs", runs):
        yield


@contextmanager
def other_draws_when_recomputed(stand: Stand) -> Iterator[None]:
    """What is computed again in backward draws the numbers of the next step."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def recompute(self: Any, generator: Callable[..., Any], function: Any, rest: Any, options: Any) -> Any:
            def at_another_step(*args: Any, **kwargs: Any) -> Any:
                stand.has_bitten = True
                self.clock = replace(self.clock, step=self.clock.step + 1)  # put back by whoever recomputes
                return function(*args, **kwargs)

            return original(self, generator, at_another_step, rest, options)

        return recompute

    with _wrapped("trireme.interpret.randomness:CountedRandomness._recompute", make):
        yield


@contextmanager
def one_token_lost(stand: Stand) -> Iterator[None]:
    """The first token that arrives at a rank's experts, or comes back from them, is zero."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def exchange(rows: Any, line: Any, **counts: Any) -> Any:
            received = original(rows, line, **counts)
            if received.shape[0] == 0 or received.ndim < 2:
                return received
            stand.has_bitten = True
            kept = torch.ones_like(received[:, :1])
            kept[0] = 0
            return received * kept

        return exchange

    with _wrapped("trireme.parallel.expert_route:exchange_rows", make):
        yield


class _Done:
    """A collective that is over."""

    def wait(self) -> None:
        """Return at once."""


def _shard_of(tensor: Any) -> Any:
    from trireme.interpret import shard_of

    return shard_of(tensor)


def _holder(place: str) -> tuple[Any, str]:
    """Find what holds ``package.module:Name.attribute``."""
    module, _, path = place.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        holder = getattr(holder, each)
    return holder, name


@contextmanager
def _replaced(place: str, value: Any) -> Iterator[None]:
    holder, name = _holder(place)
    before = vars(holder)[name]
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def _wrapped(place: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    holder, name = _holder(place)
    with _replaced(place, make(getattr(holder, name))):
        yield
