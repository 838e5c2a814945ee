"""How a sequence is cut over the ranks of context parallelism; no torch here.

Each piece of a balanced cut is a segment that one rank holds alone, so that pieces of one rank needn't be
neighbours and any part of the sequence is again such a cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from trireme.interpret.split import Split


class SequenceName(str):
    """The input whose positions a cut dim counts, where other shards name the parameters that caused them."""

    __slots__ = ()


def counts_positions(sources: Iterable[str]) -> bool:
    """Whether what caused a cut is a sequence."""
    return any(isinstance(source, SequenceName) for source in sources)


class Range(NamedTuple):
    """A run of positions: ``start`` in the whole sequence, ``place`` in the local share."""

    start: int
    place: int
    length: int


@lru_cache(maxsize=1024)
def contiguous_split(length: int, degree: int) -> Split:
    """Give each rank one run of positions, the first ranks one more where it doesn't divide."""
    return Split(parts=(tuple(_sizes(length, degree)),))


@lru_cache(maxsize=1024)
def balanced_split(length: int, degree: int) -> Split:
    """Give each rank one run from the head and one from the tail, so that causal attention is equal work.

    Source:
        Llama Team 2024, "The Llama 3 Herd of Models", section 3.3.2, on context parallelism.
    """
    return _owned([*range(degree), *reversed(range(degree))], _sizes(length, 2 * degree), degree)


@lru_cache(maxsize=1024)
def runs_split(length: int, degree: int) -> Split:
    """Give each rank one run of positions, each a segment of its own."""
    return _owned(list(range(degree)), _sizes(length, degree), degree)


def _owned(owners: list[int], sizes: list[int], degree: int) -> Split:
    pieces = zip(owners, sizes, strict=True)
    return Split(parts=tuple(tuple(size if rank == owner else 0 for rank in range(degree)) for owner, size in pieces))


def _sizes(length: int, count: int) -> list[int]:
    each, extra = divmod(length, count)
    return [each + (place < extra) for place in range(count)]


def part_of(split: Split, start: int, end: int) -> Split:
    """Give the cut of positions ``start:end``, each staying on its rank."""
    parts, place = [], 0
    for part in split.parts:
        kept = []
        for size in part:
            kept.append(max(0, min(end, place + size) - max(start, place)))
            place += size
        parts.append(tuple(kept))
    return Split(parts=tuple(part for part in parts if any(part)) or (parts[0],))


def owned_by(length: int, *, rank: int, degree: int) -> Split:
    """Give the cut of positions that one rank holds alone."""
    return Split(parts=(tuple(length if each == rank else 0 for each in range(degree)),))


@lru_cache(maxsize=4096)
def local_ranges(split: Split, rank: int) -> tuple[Range, ...]:
    """Give the runs of positions a rank holds; neighbouring ones are joined."""
    found: list[Range] = []
    place = 0
    for start, length in split.ranges(rank):
        if not length:
            continue
        if found and found[-1].start + found[-1].length == start:
            found[-1] = found[-1]._replace(length=found[-1].length + length)
        else:
            found.append(Range(start, place, length))
        place += length
    return tuple(found)


@lru_cache(maxsize=1024)
def order_of_ranks(split: Split, degree: int) -> tuple[int, ...] | None:
    """Give, for each position of the whole, its place in the ranks' shares laid end to end; None if the same."""
    places = [0] * split.total
    used = 0
    for rank in range(degree):
        for start, place, length in local_ranges(split, rank):
            places[start : start + length] = range(used + place, used + place + length)
        used += split.length(rank)
    return None if places == list(range(split.total)) else tuple(places)
