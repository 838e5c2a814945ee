"""A walk through a module in which Python's own chance leaves out as few blocks as it ever does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from trireme.interpret import HostGenerators, host_state
from trireme.parallel.capture import ModelTrace

_TRIES = 8
"""Walks in which chance may leave out blocks, of which the fullest counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FullestWalk:
    """What was found, and the decisions of Python's generators under which it was: to be entered by later walks."""

    trace: ModelTrace
    deciding: AbstractContextManager[None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Try:
    trace: ModelTrace
    draws: bool


def walk_fullest(capture: Callable[[], ModelTrace], *, host: HostGenerators) -> FullestWalk:
    """Walk once; where Python's generators are asked, some times more, and keep the walk with the most blocks."""
    tries = [_walk(capture, host=host, number=0)]
    if not tries[0].draws:
        return FullestWalk(trace=tries[0].trace, deciding=nullcontext())
    tries += [_walk(capture, host=host, number=number) for number in range(1, _TRIES)]
    best = max(range(len(tries)), key=lambda number: len(tries[number].trace.blocks))
    return FullestWalk(trace=tries[best].trace, deciding=host.at(best))


def _walk(capture: Callable[[], ModelTrace], *, host: HostGenerators, number: int) -> _Try:
    with host.at(number):
        before = host_state()
        return _Try(trace=capture(), draws=host_state() != before)
