"""Where a group of ranks talks: inside a node, across nodes, over how many rails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trireme.cluster.link import Link
from trireme.cluster.machine import Cluster, Tier
from trireme.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What a group does on one tier of the cluster.

    Attributes:
        tier: Name of the tier.
        link: Its link, one rank's share.
        fan: Most units (ranks, nodes, pods) that it joins in one set of this tier.
        units: Units that it joins in all.
        sets: Sets of this tier that the group has ranks in.
        rails: Fewest ranks of the group in a unit: they talk side by side, each over its own share.
    """

    tier: str
    link: Link
    fan: int
    units: int
    sets: int
    rails: int

    @property
    def hops(self) -> int:
        """How often a ring through all ranks passes between units here."""
        return self.units - self.sets

    @property
    def bytes_per_s(self) -> float:
        """What a unit reaches in one direction on this tier."""
        return self.rails * self.link.reached_bytes_per_s(ranks=self.fan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A group of ranks as the network sees it.

    Attributes:
        size: Ranks in the group.
        levels: Only the tiers on which it talks, from the inside out; none for a group of one.
    """

    size: int
    levels: tuple[Level, ...]

    @property
    def is_inside_a_node(self) -> bool:
        """Whether all of its traffic stays on the links inside a node or rack."""
        return all(level.tier in ("socket", "node", "rack") for level in self.levels)

    @property
    def label(self) -> str:
        """``8 node x 16 cluster``: units joined on each tier."""
        return " x ".join(f"{level.fan} {level.tier}" for level in self.levels) or "1"


def span_of(ranks: Sequence[int], *, cluster: Cluster) -> Span:
    """Give the levels on which a group of ranks talks.

    Raises:
        LayoutError: A rank is not in the cluster, or is named twice.
    """
    _check_ranks(ranks, cluster=cluster)
    return _span(ranks, tiers=cluster.tiers)


def axis_span(*, degree: int, stride: int, cluster: Cluster) -> Span:
    """Give the span of an axis of the mesh: the worst of its groups ``start, start + stride, ...`` of ``degree`` ranks.

    Raises:
        LayoutError: The axis doesn't fit the cluster's ranks.
    """
    if degree < 1 or stride < 1 or cluster.num_ranks % (degree * stride):
        raise LayoutError("cluster.axis_outside", degree=degree, stride=stride, ranks=cluster.num_ranks)
    return _axis_span(degree, stride, cluster.tiers, cluster.num_ranks)


def widest_span(groups: Iterable[Sequence[int]], *, cluster: Cluster) -> Span:
    """Give the span of the group that is worst off: the most tiers, then the fewest rails, then the most units.

    Groups of one axis act at the same time, so the slowest sets the pace.
    """
    return _worst(span_of(group, cluster=cluster) for group in groups)


def _span(ranks: Sequence[int], *, tiers: tuple[Tier, ...]) -> Span:
    below = dict.fromkeys(ranks, 1)  # unit of the tier below -> ranks of the group in it
    size_below = 1
    levels: list[Level] = []
    for tier in tiers:
        here: Counter[int] = Counter()
        fans: Counter[int] = Counter()
        for unit, count in below.items():
            here[unit * size_below // tier.ranks] += count
            fans[unit * size_below // tier.ranks] += 1
        fan = max(fans.values())
        if fan > 1:
            rails = min(below.values())
            levels.append(Level(tier=tier.name, link=tier.link, fan=fan, units=len(below), sets=len(fans), rails=rails))
        below, size_below = here, tier.ranks
    return Span(size=len(ranks), levels=tuple(levels))


@lru_cache(maxsize=4096)
def _axis_span(degree: int, stride: int, tiers: tuple[Tier, ...], num_ranks: int) -> Span:
    block = degree * stride
    # Where strides and tiers divide each other every group is a shifted copy of the first.
    is_even = all(_divide(tier.ranks, stride) and _divide(tier.ranks, block) for tier in tiers)
    starts = (0,) if is_even else tuple(b + s for b in range(0, num_ranks, block) for s in range(stride))
    return _worst(_span(range(start, start + block, stride), tiers=tiers) for start in starts)


def _divide(left: int, right: int) -> bool:
    return left % right == 0 or right % left == 0


def _worst(spans: Iterable[Span]) -> Span:
    return max(set(spans), key=_burden)


def _burden(span: Span) -> tuple[float, ...]:
    narrowest = min((level.bytes_per_s for level in span.levels), default=float("inf"))
    return (len(span.levels), -narrowest, span.size, sum(level.units for level in span.levels))


def _check_ranks(ranks: Sequence[int], *, cluster: Cluster) -> None:
    if not ranks:
        raise LayoutError("cluster.no_group", ranks=cluster.num_ranks)
    outside = [rank for rank in ranks if not 0 <= rank < cluster.num_ranks]
    if outside:
        raise LayoutError("cluster.no_such_rank", rank=outside[0], ranks=cluster.num_ranks)
    if len(set(ranks)) != len(ranks):
        twice = next(rank for rank, count in Counter(ranks).items() if count > 1)
        raise LayoutError("cluster.rank_twice", rank=twice)
