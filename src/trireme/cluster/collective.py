"""How long a collective takes: alpha-beta by algorithm, protocol and topology; the fastest is taken and named.

Bytes are those of the whole tensor: what each rank holds before an all-reduce or a reduce-scatter and
after an all-gather, and what each rank sends in all in an all-to-all.

Source:
    Step counts and volumes: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
    Operations in MPICH", sections 4 and 5; steps across nodes and chains inside them as NCCL counts them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from trireme.cluster.protocol import Protocol
from trireme.cluster.topology import Level, Span

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


_NOTHING = CollectiveTime(time_s=0.0, latency_s=0.0, algorithm="none", protocol="", tier="")


def estimate_all_reduce(
    size_bytes: float, *, span: Span, algorithms: Iterable[Algorithm] = LIBRARY_ALGORITHMS
) -> CollectiveTime:
    """Give the time in which every rank of a group gets the sum of ``size_bytes`` of each."""
    if span.size == 1:
        return _NOTHING
    return _fastest(_all_reduces(size_bytes, span=span, algorithms=frozenset(algorithms)))


def estimate_all_gather(
    size_bytes: float, *, span: Span, algorithms: Iterable[Algorithm] = LIBRARY_ALGORITHMS
) -> CollectiveTime:
    """Give the time in which every rank gets all shards of a tensor that is ``size_bytes`` when whole."""
    if span.size == 1:
        return _NOTHING
    found = list(_rings(size_bytes, span=span, rounds=1))
    if "hierarchical" in frozenset(algorithms) and len(span.levels) > 1:
        found.append(_nested(size_bytes, span=span))
    return _fastest(found)


def estimate_reduce_scatter(
    size_bytes: float, *, span: Span, algorithms: Iterable[Algorithm] = LIBRARY_ALGORITHMS
) -> CollectiveTime:
    """Give the time in which every rank gets its shard of the sum of ``size_bytes`` of each; as an all-gather's."""
    return estimate_all_gather(size_bytes, span=span, algorithms=algorithms)


def estimate_broadcast(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Give the time in which one rank's ``size_bytes`` reach every rank, passed on in pieces along a chain."""
    if span.size == 1:
        return _NOTHING
    narrow = _narrowest(span.levels)
    return _fastest(
        _made(
            algorithm="ring",
            protocol=protocols[0].name,
            tier=narrow.tier,
            latency_s=_launch_s(protocols) + _ring_steps_s(span, protocols),
            bytes_s=size_bytes / _ring_bytes_per_s(span, protocols),
        )
        for protocols in _shared_protocols(span)
    )


def estimate_all_to_all(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Give the time in which every rank sends an equal part of its ``size_bytes`` to every rank.

    Tiers work at the same time; each carries what goes to ranks beyond the tier below it. Every peer costs
    a call, the cheapest step of the tier that leads to it.
    """
    if span.size == 1:
        return _NOTHING
    loads = [(_sent_beyond(size_bytes, level=level, size=span.size), level.tier) for level in span.levels]
    reach = [*(level.rails for level in span.levels[1:]), span.size]
    calls_s = sum(
        (beyond - level.rails) * level.link.latency_s for level, beyond in zip(span.levels, reach, strict=True)
    )
    latency_s = max(level.link.protocols[-1].launch_s for level in span.levels) + calls_s
    bytes_s, tier = max(loads)
    return _made(algorithm="pairwise", protocol="simple", tier=tier, latency_s=latency_s, bytes_s=bytes_s)


def estimate_p2p(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Give the time in which one rank of a pair sends ``size_bytes`` to the other."""
    if span.size == 1:
        return _NOTHING
    level = span.levels[-1]
    rate = level.link.reached_bytes_per_s(ranks=2)
    return _fastest(
        _made(
            algorithm="direct",
            protocol=protocol.name,
            tier=level.tier,
            latency_s=protocol.launch_s + protocol.ring_step_s,
            bytes_s=size_bytes / _carried(rate, protocol=protocol, ratio=protocol.ring_ratio),
        )
        for protocol in level.link.protocols
    )


def bus_bytes_per_s(size_bytes: float, *, time_s: float, size: int, rounds: int = 2) -> float:
    """Give the bus bandwidth that benchmarks print: 2(n-1)/n (all-reduce) or (n-1)/n (``rounds=1``) bytes by time."""
    return rounds * (size - 1) / size * size_bytes / time_s


def _all_reduces(size_bytes: float, *, span: Span, algorithms: frozenset[Algorithm]) -> Iterator[CollectiveTime]:
    if "ring" in algorithms:
        yield from _rings(size_bytes, span=span, rounds=2)
    if "tree" in algorithms:
        yield from _trees(size_bytes, span=span)
    inner = span.levels[0]
    if inner.link.reduction is not None:
        if "switch" in algorithms and len(span.levels) == 1:
            yield _switch(size_bytes, level=inner)
        if "switch+tree" in algorithms and len(span.levels) > 1:
            yield _switch_and_tree(size_bytes, span=span)
    if "hierarchical" in algorithms and len(span.levels) > 1:
        yield _hierarchical(size_bytes, span=span)


def _rings(size_bytes: float, *, span: Span, rounds: int) -> Iterator[CollectiveTime]:
    """One ring through all ranks; every rank sends (n-1)/n of the bytes in each round."""
    moved_bytes = rounds * (span.size - 1) / span.size * size_bytes
    for protocols in _shared_protocols(span):
        yield _made(
            algorithm="ring",
            protocol=protocols[0].name,
            tier=_narrowest(span.levels).tier,
            latency_s=_launch_s(protocols) + rounds * _ring_steps_s(span, protocols),
            bytes_s=moved_bytes / _ring_bytes_per_s(span, protocols),
        )


def _trees(size_bytes: float, *, span: Span) -> Iterator[CollectiveTime]:
    """A chain inside each unit, a double binary tree across the outermost tier."""
    for protocols in _shared_protocols(span):
        latency_s, loads = _launch_s(protocols), []
        for level, protocol in zip(span.levels, protocols, strict=True):
            is_outermost = level is span.levels[-1] and len(span.levels) > 1
            latency_s += 2 * _tree_depth(level, is_outermost=is_outermost) * protocol.tree_step_s
            rate = _carried(level.bytes_per_s, protocol=protocol, ratio=protocol.tree_ratio)
            loads.append((_tree_bytes(size_bytes, level=level, is_outermost=is_outermost) / rate, level.tier))
        bytes_s, tier = max(loads)
        yield _made(algorithm="tree", protocol=protocols[0].name, tier=tier, latency_s=latency_s, bytes_s=bytes_s)


def _tree_depth(level: Level, *, is_outermost: bool) -> int:
    return math.ceil(math.log2(level.fan)) if is_outermost else level.fan - 1


def _tree_bytes(size_bytes: float, *, level: Level, is_outermost: bool) -> float:
    # Two units swap sums once; with more, an inner unit takes from two children and passes the result on again.
    return size_bytes if is_outermost and level.fan == 2 else 2 * size_bytes


def _switch(size_bytes: float, *, level: Level) -> CollectiveTime:
    """The switch adds: a rank's shard comes in summed and goes out once, its tensor goes out and comes back once."""
    reduction = level.link.reduction
    assert reduction is not None
    bytes_s = size_bytes * (1 + 1 / level.fan) / (level.link.bytes_per_s * reduction.ratio)
    return _made(algorithm="switch", protocol="simple", tier=level.tier, latency_s=reduction.launch_s, bytes_s=bytes_s)


def _switch_and_tree(size_bytes: float, *, span: Span) -> CollectiveTime:
    inner = _switch(size_bytes, level=span.levels[0])
    latency_s, loads = inner.latency_s, [(inner.time_s - inner.latency_s, inner.tier)]
    for level in span.levels[1:]:
        protocol = level.link.protocols[-1]
        latency_s += 2 * _tree_depth(level, is_outermost=True) * protocol.tree_step_s
        loads.append((_tree_bytes(size_bytes, level=level, is_outermost=True) / level.bytes_per_s, level.tier))
    bytes_s, tier = max(loads)
    return _made(algorithm="switch+tree", protocol="simple", tier=tier, latency_s=latency_s, bytes_s=bytes_s)


def _hierarchical(size_bytes: float, *, span: Span) -> CollectiveTime:
    """Reduce-scatter inside, all-reduce across on every rail at once, all-gather inside; one after the other."""
    parts = _nested_parts(size_bytes, span=span)
    return _made(
        algorithm="hierarchical",
        protocol="simple",
        tier=max(parts)[1],
        latency_s=2 * sum(part[2] for part in parts),
        bytes_s=2 * sum(part[0] for part in parts),
    )


def _nested(size_bytes: float, *, span: Span) -> CollectiveTime:
    """All-gather across on every rail at once, then inside."""
    parts = _nested_parts(size_bytes, span=span)
    return _made(
        algorithm="hierarchical",
        protocol="simple",
        tier=max(parts)[1],
        latency_s=sum(part[2] for part in parts),
        bytes_s=sum(part[0] for part in parts),
    )


def _sent_beyond(size_bytes: float, *, level: Level, size: int) -> float:
    """Give the time in which a rank sends what goes to ranks outside its unit."""
    sent_bytes = size_bytes * (size - level.rails) / size
    return sent_bytes / level.link.reached_bytes_per_s(ranks=level.fan)


def _nested_parts(size_bytes: float, *, span: Span) -> list[tuple[float, str, float]]:
    """Give (time of the bytes, tier, latency) of one round on each tier, each rank moving its part of the tensor."""
    parts = []
    for level in span.levels:
        protocol = level.link.protocols[-1]
        rate = level.link.reached_bytes_per_s(ranks=level.fan)
        part_bytes = size_bytes / level.rails * (level.fan - 1) / level.fan
        parts.append((part_bytes / rate, level.tier, protocol.launch_s + (level.fan - 1) * protocol.ring_step_s))
    return parts


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


def _made(*, algorithm: Algorithm, protocol: str, tier: str, latency_s: float, bytes_s: float) -> CollectiveTime:
    return CollectiveTime(
        time_s=latency_s + bytes_s, latency_s=latency_s, algorithm=algorithm, protocol=protocol, tier=tier
    )


def _fastest(times: Iterable[CollectiveTime]) -> CollectiveTime:
    return min(times, key=lambda time: time.time_s)
