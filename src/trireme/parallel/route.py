"""Which values cross which border between stages, for batches of one kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.parallel.memo import Meta, describe
from trireme.parallel.trace import Trace
from trireme.parallel.value import ValueId


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What the stages of one forward hand on.

    Attributes:
        crossings: For each border, the values that pass it, in order; border s lies behind stage s.
        digests: For each border, the digest of the calls before it; the last one is that of the whole forward.
        metas: Shapes of all values that cross.
        names: Of the calls that made them.
    """

    crossings: tuple[tuple[ValueId, ...], ...]
    digests: tuple[int, ...]
    metas: Mapping[ValueId, Meta]
    names: Mapping[ValueId, str]


def route_of(trace: Trace, *, blocks: Sequence[str], cuts: Sequence[str]) -> Route:
    """Read off a trace what crosses the borders before these blocks.

    Raises:
        LayoutError: The forward never came to one of them, or a buffer that is written before a border is read
            behind it.
    """
    starts = [_start(trace, blocks, cut) for cut in cuts]
    check_states(trace.states, starts=starts, cuts=cuts)
    lives = trace.lives.items()
    crossings = tuple(tuple(value for value, life in lives if life.made < start <= life.used) for start in starts)
    crossing = {value for values in crossings for value in values}
    return Route(
        crossings=crossings,
        digests=(*(trace.digests[start] for start in starts), trace.digest),
        metas={value: trace.lives[value].meta for value in crossing},
        names={value: trace.lives[value].name for value in crossing},
    )


def _start(trace: Trace, blocks: Sequence[str], cut: str) -> int:
    """The interval with which a stage begins: that of its first block, or of the next one that isn't left out."""
    later = set(blocks[blocks.index(cut) :])
    for interval, path in enumerate(trace.entered, start=1):
        if path in later:
            return interval
    raise LayoutError("parallel.stage_not_entered", block=cut)


def check_states(states: Any, *, starts: Sequence[int], cuts: Sequence[str]) -> None:
    """Refuse to cut between writing and reading what a module keeps: each stage writes to its own.

    Raises:
        LayoutError: A cut lies there.
    """
    for name, written, read in states:
        for start, cut in zip(starts, cuts, strict=True):
            if written < start <= read:
                raise LayoutError("parallel.stage_state", name=name, block=cut)


def batch_key(module: nn.Module, batch: Mapping[str, Any]) -> Any:
    """Give what of a batch, a module and the surroundings decides about the shapes of all values."""
    kinds = {value.device.type for value in batch.values() if isinstance(value, torch.Tensor)}
    casts = tuple((kind, torch.get_autocast_dtype(kind)) for kind in sorted(kinds) if torch.is_autocast_enabled(kind))
    return (describe(batch), module.training, casts)
