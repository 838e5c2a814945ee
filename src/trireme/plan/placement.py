"""Where each rank stands: tp fastest, then cp, dp_shard, dp_replicate, and pp slowest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from trireme.errors import LayoutError
from trireme.plan.layout import Layout

Axis = Literal["pp", "dp_replicate", "dp_shard", "cp", "tp"]
AXES: tuple[Axis, ...] = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
"""Axes that multiply to the world, slowest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A rank's place on every axis; ``ep`` is its place among the ranks that share out the experts."""

    pp: int = 0
    dp_replicate: int = 0
    dp_shard: int = 0
    cp: int = 0
    tp: int = 0
    ep: int = 0


def coordinate(layout: Layout, rank: int) -> Coordinate:
    """Give the place of a rank on every axis."""
    if not 0 <= rank < layout.world_size:
        raise LayoutError("layout.no_such_rank", rank=rank, world=layout.world_size)
    places: dict[str, int] = {}
    rest = rank
    for axis in reversed(AXES):
        rest, places[axis] = divmod(rest, getattr(layout, axis))
    return Coordinate(**places, ep=rank % layout.ep)


def rank_at(layout: Layout, place: Coordinate) -> int:
    """Give the rank at a place; ``ep`` follows from the other axes."""
    rank = 0
    for axis in AXES:
        rank = rank * getattr(layout, axis) + getattr(place, axis)
    return rank


def groups_of(layout: Layout, axes: Axis | Sequence[Axis]) -> tuple[tuple[int, ...], ...]:
    """Give the groups of ranks that differ only on these axes, each in order, covering the world once."""
    inside = (axes,) if isinstance(axes, str) else tuple(axes)
    fixed = [range(getattr(layout, axis)) if axis not in inside else range(1) for axis in AXES]
    moving = [range(getattr(layout, axis)) if axis in inside else range(1) for axis in AXES]
    strides = _strides(layout)
    offsets = [sum(p * s for p, s in zip(place, strides, strict=True)) for place in product(*moving)]
    starts = [sum(p * s for p, s in zip(place, strides, strict=True)) for place in product(*fixed)]
    return tuple(tuple(start + offset for offset in offsets) for start in starts)


def _strides(layout: Layout) -> list[int]:
    strides = [1]
    for axis in reversed(AXES[1:]):
        strides.insert(0, strides[0] * getattr(layout, axis))
    return strides


def ranks_of(layout: Layout, axes: Axis | Sequence[Axis], *, rank: int = 0) -> tuple[int, ...]:
    """Give the group of ``rank`` on these axes: the ranks it talks to there, itself included."""
    return next(group for group in groups_of(layout, axes) if rank in group)


def expert_groups(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Give the groups that share out the experts: neighbours in tp, then cp, then dp_shard, never further."""
    return tuple(tuple(range(start, start + layout.ep)) for start in range(0, layout.world_size, layout.ep))


def expert_copies(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Give the groups that hold the same experts of one pipeline stage, over whose ranks their gradients are summed."""
    stage_ranks = layout.world_size // layout.pp
    return tuple(
        tuple(range(stage * stage_ranks + place, (stage + 1) * stage_ranks, layout.ep))
        for stage in range(layout.pp)
        for place in range(layout.ep)
    )
