"""Choosing for many layers at once: the least time within a budget of bytes, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Option(NamedTuple):
    """One way to treat a layer."""

    size_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """``count`` equal layers, each of which is treated in one of the ways of ``options``."""

    count: int
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How many layers of each group are treated in which way, and what that comes to."""

    counts: tuple[tuple[int, ...], ...]
    size_bytes: int
    time_s: float


class _Point(NamedTuple):
    size_bytes: int
    time_s: float
    counts: tuple[tuple[int, ...], ...]


def choose(groups: Sequence[Group], *, budget_bytes: int) -> Choice | None:
    """Give the choice that takes the least time within the budget, None if none is.

    Exact: every combination that another one beats in both bytes and time is dropped, no other.
    """
    frontier = [_Point(0, 0.0, ())]
    for group in groups:
        mixes = _mixes(group)
        joined = [
            _Point(point.size_bytes + mix.size_bytes, point.time_s + mix.time_s, (*point.counts, *mix.counts))
            for point in frontier
            for mix in mixes
            if point.size_bytes + mix.size_bytes <= budget_bytes
        ]
        frontier = _undominated(joined)
    if not frontier:
        return None
    best = min(frontier, key=lambda point: (point.time_s, point.size_bytes))
    return Choice(counts=best.counts, size_bytes=best.size_bytes, time_s=best.time_s)


def _mixes(group: Group) -> list[_Point]:
    """Every way to deal a group's layers out to its options, without those that another beats."""
    kept = [index for index, option in enumerate(group.options) if not _is_beaten(option, index, group.options)]
    partial: list[tuple[int, int, float, tuple[int, ...]]] = [(group.count, 0, 0.0, ())]
    for index, option in enumerate(group.options):
        is_last = index == kept[-1]
        grown = []
        for left, size, time_s, counts in partial:
            takes = range(left, left + 1) if is_last else range(left + 1) if index in kept else range(1)
            grown += [(left - n, size + n * option.size_bytes, time_s + n * option.time_s, (*counts, n)) for n in takes]
        partial = grown
    return _undominated([_Point(size, time_s, (counts,)) for _, size, time_s, counts in partial])


def _is_beaten(option: Option, index: int, options: tuple[Option, ...]) -> bool:
    """Whether another option needs no more bytes and no more time; of equal ones the first stays."""
    return any(
        other.size_bytes <= option.size_bytes and other.time_s <= option.time_s and (other != option or place < index)
        for place, other in enumerate(options)
        if place != index
    )


def _undominated(points: list[_Point]) -> list[_Point]:
    """Keep what is faster than everything that is as small."""
    kept: list[_Point] = []
    for point in sorted(points, key=lambda each: (each.size_bytes, each.time_s)):
        if not kept or point.time_s < kept[-1].time_s:
            kept.append(point)
    return kept
