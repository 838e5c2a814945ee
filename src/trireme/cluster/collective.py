"""How long a collective takes: alpha-beta by algorithm, protocol and topology; the fastest is taken and named.

Every way of doing it costs a constant and a slope, so a group's lines are worked out once and kept.
Bytes are those of the whole tensor: what each rank holds before an all-reduce or a reduce-scatter and
after an all-gather, and what each rank sends in all in an all-to-all.

Source:
    Step counts and volumes: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
    Operations in MPICH", sections 4 and 5; steps across nodes and chains inside them as NCCL counts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from trireme.cluster.protocol import Protocol
from trireme.cluster.topology import Level, Span
from trireme.errors import LayoutError

Algorithm = Literal["none", "ring", "tree", "hierarchical", "switch", "switch+tree", "pairwise", "direct"]

LIBRARY_ALGORITHMS: tuple[Algorithm, ...] = ("ring", "tree", "switch", "switch+tree")
"""What NCCL and its kin choose from on their own.

``hierarchical`` is for programs that split the work themselves (or HCCL): with one communicator over three
nodes or more no library was measured to save traffic in that way.
"""
ALL_ALGORITHMS: tuple[Algorithm, ...] = (*LIBRARY_ALGORITHMS, "hierarchical")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """A time and what makes it.

    Attributes:
        time_s: In all.
        latency_s: The part that stays with an empty message.
        algorithm: The fastest algorithm.
        protocol: Its fastest protocol.
        tier: The tier whose bandwidth holds it up.
    """

    time_s: float
    latency_s: float
    algorithm: Algorithm
    protocol: str
    tier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """What one way costs: a constant, and a slope by the byte."""

    algorithm: Algorithm
    protocol: str
    tier: str
    latency_s: float
    s_per_byte: float


_NOTHING = CollectiveTime(time_s=0.0, latency_s=0.0, algorithm="none", protocol="", tier="")


def estimate_all_reduce(
    size_bytes: float, *, span: Span, algorithms: Iterable[Algorithm] = LIBRARY_ALGORITHMS
) -> CollectiveTime:
    """Give the time in which every rank of a group gets the sum of ``size_bytes`` of each.

    Raises:
        LayoutError: None of the algorithms can be had on this span.
    """
    return _fastest(size_bytes, _kept(_all_reduces, span, tuple(algorithms)))


def estimate_all_gather(
    size_bytes: float, *, span: Span, algorithms: Iterable[Algorithm] = LIBRARY_ALGORITHMS
) -> CollectiveTime:
    """Give the time in which every rank gets all shards of a tensor that is ``size_bytes`` when whole."""
    return _fastest(size_bytes, _kept(_gathers, span, tuple(algorithms)))


def estimate_reduce_scatter(
    size_bytes: float, *, span: Span, algorithms: Iterable[Algorithm] = LIBRARY_ALGORITHMS
) -> CollectiveTime:
    """Give the time in which every rank gets its shard of the sum of ``size_bytes`` of each; as an all-gather's."""
    return estimate_all_gather(size_bytes, span=span, algorithms=algorithms)


def estimate_broadcast(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Give the time in which one rank's ``size_bytes`` reach every rank, passed on in pieces along a chain."""
    return _fastest(size_bytes, _kept(_broadcasts, span, ()))


def estimate_all_to_all(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Give the time in which every rank sends an equal part of its ``size_bytes`` to every rank.

    Tiers work at the same time; each carries what goes to ranks beyond the tier below it. Every peer costs
    a call, the cheapest step of the tier that leads to it.
    """
    return _fastest(size_bytes, _kept(_all_to_alls, span, ()))


def estimate_p2p(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Give the time in which one rank of a pair sends ``size_bytes`` to the other."""
    return _fastest(size_bytes, _kept(_p2ps, span, ()))


def bus_bytes_per_s(size_bytes: float, *, time_s: float, size: int, rounds: int = 2) -> float:
    """Give the bus bandwidth that benchmarks print: 2(n-1)/n (all-reduce) or (n-1)/n (``rounds=1``) bytes by time."""
    return rounds * (size - 1) / size * size_bytes / time_s


Lines = Callable[[Span, tuple[Algorithm, ...]], Iterator[_Line]]


@lru_cache(maxsize=8192)
def _kept(lines: Lines, span: Span, algorithms: tuple[Algorithm, ...]) -> tuple[_Line, ...]:
    if span.size == 1:
        return ()
    found = tuple(lines(span, algorithms))
    if not found:
        raise LayoutError("cluster.no_algorithm", asked=" ".join(algorithms) or "-", span=span.label)
    return found


def _fastest(size_bytes: float, lines: tuple[_Line, ...]) -> CollectiveTime:
    if not lines:
        return _NOTHING
    best = min(lines, key=lambda line: line.latency_s + size_bytes * line.s_per_byte)
    return CollectiveTime(
        time_s=best.latency_s + size_bytes * best.s_per_byte,
        latency_s=best.latency_s,
        algorithm=best.algorithm,
        protocol=best.protocol,
        tier=best.tier,
    )


def _all_reduces(span: Span, algorithms: tuple[Algorithm, ...]) -> Iterator[_Line]:
    if "ring" in algorithms:
        yield from _rings(span, rounds=2)
    if "tree" in algorithms:
        yield from _trees(span)
    if span.levels[0].link.reduction is not None:
        if "switch" in algorithms and len(span.levels) == 1:
            yield _switch(span.levels[0])
        if "switch+tree" in algorithms and len(span.levels) > 1:
            yield _switch_and_tree(span)
    if "hierarchical" in algorithms and len(span.levels) > 1:
        yield _nested(span, rounds=2)


def _gathers(span: Span, algorithms: tuple[Algorithm, ...]) -> Iterator[_Line]:
    yield from _rings(span, rounds=1)
    if "hierarchical" in algorithms and len(span.levels) > 1:
        yield _nested(span, rounds=1)


def _broadcasts(span: Span, _: tuple[Algorithm, ...]) -> Iterator[_Line]:
    for protocols in _shared_protocols(span):
        yield _Line(
            algorithm="ring",
            protocol=protocols[0].name,
            tier=_narrowest(span.levels).tier,
            latency_s=_launch_s(protocols) + _ring_steps_s(span, protocols),
            s_per_byte=1 / _ring_bytes_per_s(span, protocols),
        )


def _all_to_alls(span: Span, _: tuple[Algorithm, ...]) -> Iterator[_Line]:
    loads = [(_sent_beyond(level, size=span.size), level.tier) for level in span.levels]
    reach = [*(level.rails for level in span.levels[1:]), span.size]
    calls_s = sum(
        (beyond - level.rails) * level.link.latency_s for level, beyond in zip(span.levels, reach, strict=True)
    )
    latency_s = max(level.link.protocols[-1].launch_s for level in span.levels) + calls_s
    s_per_byte, tier = max(loads)
    yield _Line(algorithm="pairwise", protocol="simple", tier=tier, latency_s=latency_s, s_per_byte=s_per_byte)


def _p2ps(span: Span, _: tuple[Algorithm, ...]) -> Iterator[_Line]:
    level = span.levels[-1]
    rate = level.link.reached_bytes_per_s(ranks=2)
    for protocol in level.link.protocols:
        yield _Line(
            algorithm="direct",
            protocol=protocol.name,
            tier=level.tier,
            latency_s=protocol.launch_s + protocol.ring_step_s,
            s_per_byte=1 / _carried(rate, protocol=protocol, ratio=protocol.ring_ratio),
        )


def _rings(span: Span, *, rounds: int) -> Iterator[_Line]:
    """One ring through all ranks; every rank sends (n-1)/n of the bytes in each round."""
    for protocols in _shared_protocols(span):
        yield _Line(
            algorithm="ring",
            protocol=protocols[0].name,
            tier=_narrowest(span.levels).tier,
            latency_s=_launch_s(protocols) + rounds * _ring_steps_s(span, protocols),
            s_per_byte=rounds * (span.size - 1) / span.size / _ring_bytes_per_s(span, protocols),
        )


def _trees(span: Span) -> Iterator[_Line]:
    """A chain inside each unit, a double binary tree across the outermost tier."""
    for protocols in _shared_protocols(span):
        latency_s, loads = _launch_s(protocols), []
        for level, protocol in zip(span.levels, protocols, strict=True):
            is_outermost = level is span.levels[-1] and len(span.levels) > 1
            latency_s += 2 * _tree_depth(level, is_outermost=is_outermost) * protocol.tree_step_s
            rate = _carried(level.bytes_per_s, protocol=protocol, ratio=protocol.tree_ratio)
            loads.append((_tree_volume(level, is_outermost=is_outermost) / rate, level.tier))
        s_per_byte, tier = max(loads)
        yield _Line(algorithm="tree", protocol=protocols[0].name, tier=tier, latency_s=latency_s, s_per_byte=s_per_byte)


def _tree_depth(level: Level, *, is_outermost: bool) -> int:
    return math.ceil(math.log2(level.fan)) if is_outermost else level.fan - 1


def _tree_volume(level: Level, *, is_outermost: bool) -> int:
    # Two units swap sums once; with more, an inner unit takes from two children and passes the result on again.
    return 1 if is_outermost and level.fan == 2 else 2


def _switch(level: Level) -> _Line:
    """The switch adds: a rank's shard comes in summed and goes out once, its tensor goes out and comes back once."""
    reduction = level.link.reduction
    assert reduction is not None
    return _Line(
        algorithm="switch",
        protocol="simple",
        tier=level.tier,
        latency_s=reduction.launch_s,
        s_per_byte=(1 + 1 / level.fan) / (level.link.bytes_per_s * reduction.ratio),
    )


def _switch_and_tree(span: Span) -> _Line:
    inner = _switch(span.levels[0])
    latency_s, loads = inner.latency_s, [(inner.s_per_byte, inner.tier)]
    for level in span.levels[1:]:
        latency_s += 2 * _tree_depth(level, is_outermost=True) * level.link.protocols[-1].tree_step_s
        loads.append((_tree_volume(level, is_outermost=True) / level.bytes_per_s, level.tier))
    s_per_byte, tier = max(loads)
    return _Line(algorithm="switch+tree", protocol="simple", tier=tier, latency_s=latency_s, s_per_byte=s_per_byte)


def _nested(span: Span, *, rounds: int) -> _Line:
    """Tier by tier, each rank moving only its part: reduce-scatter inside, across on every rail at once, gather inside.

    A gather alone (``rounds=1``) goes across first, then inside.
    """
    parts, latency_s = [], 0.0
    for level in span.levels:
        protocol = level.link.protocols[-1]
        rate = level.link.reached_bytes_per_s(ranks=level.fan)
        parts.append(((level.fan - 1) / level.fan / level.rails / rate, level.tier))
        latency_s += protocol.launch_s + (level.fan - 1) * protocol.ring_step_s
    return _Line(
        algorithm="hierarchical",
        protocol="simple",
        tier=max(parts)[1],
        latency_s=rounds * latency_s,
        s_per_byte=rounds * sum(part for part, _ in parts),
    )


def _sent_beyond(level: Level, *, size: int) -> float:
    """Give the time by the byte in which a rank sends what goes to ranks outside its unit."""
    return (size - level.rails) / size / level.link.reached_bytes_per_s(ranks=level.fan)


def _shared_protocols(span: Span) -> Iterator[tuple[Protocol, ...]]:
    """Yield, for each protocol that every level knows, its figures on each level."""
    tables = [{protocol.name: protocol for protocol in level.link.protocols} for level in span.levels]
    for name in tables[0]:
        if all(name in table for table in tables):
            yield tuple(table[name] for table in tables)


def _launch_s(protocols: tuple[Protocol, ...]) -> float:
    return max(protocol.launch_s for protocol in protocols)


def _ring_steps_s(span: Span, protocols: tuple[Protocol, ...]) -> float:
    return sum(level.hops * protocol.ring_step_s for level, protocol in zip(span.levels, protocols, strict=True))


def _ring_bytes_per_s(span: Span, protocols: tuple[Protocol, ...]) -> float:
    return min(
        _carried(level.bytes_per_s, protocol=protocol, ratio=protocol.ring_ratio)
        for level, protocol in zip(span.levels, protocols, strict=True)
    )


def _carried(rate_bytes_per_s: float, *, protocol: Protocol, ratio: float) -> float:
    return min(rate_bytes_per_s * ratio, protocol.cap_bytes_per_s or math.inf)


def _narrowest(levels: tuple[Level, ...]) -> Level:
    return min(levels, key=lambda level: level.bytes_per_s)
