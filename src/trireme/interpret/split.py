"""How one dim of a tensor is cut over the ranks of an axis, segment by segment; no torch here.

A fused matrix (q, k and v below each other) is cut within each of its segments, so that every rank holds the
same kinds of rows. Shares may be unequal: whatever doesn't divide goes to the first ranks. A segment too short for
all ranks (the one key head of multi-query attention) is kept whole by each; in backward its gradients on the ranks
add up to the true one, as those of cut segments do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """``parts[segment][rank]`` is the length of that rank's share; a single length is a segment that all keep."""

    parts: tuple[tuple[int, ...], ...]

    @property
    def total(self) -> int:
        """Length of the whole dim."""
        return sum(map(sum, self.parts))

    @property
    def segments(self) -> tuple[int, ...]:
        """Length of each segment."""
        return tuple(map(sum, self.parts))

    def length(self, rank: int) -> int:
        """Length of the dim on one rank."""
        return sum(part[rank] if len(part) > 1 else part[0] for part in self.parts)

    @property
    def keeps_some(self) -> bool:
        """Whether ranks hold a segment in common."""
        return any(len(part) == 1 for part in self.parts)

    @property
    def keeps_all(self) -> bool:
        """Whether nothing is cut."""
        return all(len(part) == 1 for part in self.parts)

    def ranges(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield (start, length) of each piece that a rank holds, in the whole dim's numbering."""
        start = 0
        for part in self.parts:
            yield (start, part[0]) if len(part) == 1 else (start + sum(part[:rank]), part[rank])
            start += sum(part)

    def kept_ranges(self, rank: int) -> Iterator[tuple[int, int]]:
        """Yield (start, length) of each segment that all ranks keep, in the numbering of a rank's share."""
        start = 0
        for part in self.parts:
            length = part[0] if len(part) == 1 else part[rank]
            if len(part) == 1:
                yield start, length
            start += length

    def scaled(self, factor: int) -> Split:
        """Give the split of a dim whose elements are each replaced by ``factor`` neighbours."""
        return Split(parts=tuple(tuple(size * factor for size in part) for part in self.parts))

    def divided(self, divisor: int) -> Split | None:
        """Give the split counted in groups of ``divisor`` elements, or None if a share cuts a group."""
        if any(size % divisor for part in self.parts for size in part):
            return None
        return Split(parts=tuple(tuple(size // divisor for size in part) for part in self.parts))

    def one_of(self, repeats: int) -> Split | None:
        """Give one period, if the segments are ``repeats`` times the same ones."""
        period, rest = divmod(len(self.parts), repeats)
        if rest or not period or self.parts != self.parts[:period] * repeats:
            return None
        return Split(parts=self.parts[:period])


def split_evenly(
    lengths: Sequence[int], *, degree: int, grain: int = 1, kept: frozenset[int] = frozenset()
) -> Split | None:
    """Cut segments as evenly as whole grains allow; None if a rank would get nothing.

    Segments of a length in ``kept`` stay whole.
    """
    parts: list[tuple[int, ...]] = []
    for length in lengths:
        grains, rest = divmod(length, grain)
        if rest == 0 and length in kept and degree > 1:
            parts.append((length,))
            continue
        if rest or grains < degree:
            return None
        each, extra = divmod(grains, degree)
        parts.append(tuple((each + (rank < extra)) * grain for rank in range(degree)))
    return Split(parts=tuple(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What a tensor's owner knows: the dim that is cut, how, and which parameters caused it.

    ``unit`` is how many elements of the responsible parameter's dim one element of this dim stands for.
    """

    dim: int
    split: Split
    sources: frozenset[str]
    unit: Fraction = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """What would help: segments that end at ``boundaries``, shares of whole ``grain``, segments of these lengths
    kept whole; in parameter elements."""

    boundaries: tuple[Fraction, ...] = ()
    grain: Fraction | None = None
    kept: frozenset[Fraction] = frozenset()


class CannotSplitError(Exception):
    """An operation can't keep its input sharded; names the parameters responsible and what would help."""

    def __init__(
        self, key: str, /, *, sources: frozenset[str], refinement: Refinement | None = None, **values: object
    ) -> None:
        self.key = key
        self.sources = sources
        self.refinement = refinement
        self.values = values
        super().__init__(key)
