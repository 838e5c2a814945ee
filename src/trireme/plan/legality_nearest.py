"""The nearest layouts that can run, for one that can't."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from math import log2
from typing import Any

from trireme.errors import LayoutError
from trireme.plan.layout import Layout
from trireme.plan.legality import ModelFacts, Violation, check_layout
from trireme.plan.schedule import ScheduleName

_MAX_TRIED = 400
"""Layouts looked at before giving up; the nearest are found within some dozens."""

_VIOLATION_DISTANCE = 1.0
"""What a row that is still broken counts beside the changes made: about the one change it takes to mend it."""

_SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "interleaved", "zb", "zbv", "gpipe")
"""In the order in which they are offered."""


def require_legal(layout: Layout, facts: ModelFacts) -> None:
    """Refuse a layout that breaks a row of the table, with every reason and the nearest layouts that don't.

    Raises:
        LayoutError: It breaks one.
    """
    violations = check_layout(layout, facts)
    if not violations:
        return
    reasons = " ".join(violation.reason for violation in violations)
    nearest = nearest_legal(layout, facts)
    if nearest:
        raise LayoutError("layout.illegal", reasons=reasons, near=" | ".join(map(str, nearest)))
    raise LayoutError("layout.illegal_alone", reasons=reasons)


def nearest_legal(layout: Layout, facts: ModelFacts, *, limit: int = 3) -> list[Layout]:
    """Give up to ``limit`` layouts that can run, the least changed first.

    Settings that break a row are changed one at a time; where the ranks are known, the data-parallel degree
    follows what the other axes leave.
    """
    ranks = facts.ranks or layout.world_size
    plain = replace(layout, pp=1, tp=1, cp=1, ep=1, vp=0, schedule="1f1b", sp=False, microbatches_per_step=None)
    search = _Search(asked=layout, facts=facts)
    for start in (layout, plain):
        search.add(start)
    found: list[Layout] = []
    for tried, violations in search:
        if not violations:
            found.append(tried)
        if len(found) == limit:
            break
        for changed in _changes(tried, violations[:1], facts=facts, ranks=ranks):
            search.add(changed)
    if not found:  # far from anything that can run, the search may end among layouts that can't
        last = plain if facts.ranks is None else _with_rest(plain, facts.ranks)
        found = [last] if not check_layout(last, facts) else []
    return sorted(found, key=lambda other: _distance(layout, other))


class _Search:
    """Layouts to look at, those that break least and differ least first; each is looked at once."""

    def __init__(self, *, asked: Layout, facts: ModelFacts) -> None:
        self._asked, self._facts = asked, facts
        self._heap: list[tuple[float, int, Layout, list[Violation]]] = []
        self._seen: set[Layout] = set()

    def add(self, layout: Layout) -> None:
        ranks = self._facts.ranks
        layout = layout if ranks is None else _with_rest(layout, ranks)
        if layout not in self._seen:
            self._seen.add(layout)
            violations = check_layout(layout, self._facts)
            reach = _distance(self._asked, layout) + _VIOLATION_DISTANCE * len(violations)
            heapq.heappush(self._heap, (reach, len(self._seen), layout, violations))

    def __iter__(self) -> Iterator[tuple[Layout, list[Violation]]]:
        for _ in range(_MAX_TRIED):
            if not self._heap:
                return
            _, _, layout, violations = heapq.heappop(self._heap)
            yield layout, violations


def _changes(layout: Layout, violations: list[Violation], *, facts: ModelFacts, ranks: int) -> Iterator[Layout]:
    for violation in violations:
        for key in violation.keys:
            for settings in _alternatives(layout, key, facts=facts, ranks=ranks):
                yield replace(layout, **settings)


def _alternatives(layout: Layout, key: str, *, facts: ModelFacts, ranks: int) -> Iterator[dict[str, Any]]:
    if key == "dp":
        axis = "dp_shard" if layout.dp_shard > 1 else "dp_replicate"
        yield from ({axis: degree} for degree in _divisors(facts.global_batch_seqs or ranks))
    elif key in ("tp", "pp", "cp"):
        yield from ({key: degree} for degree in _divisors(ranks))
    elif key == "ep":
        yield from ({key: degree} for degree in _divisors(layout.dp_shard * layout.cp * layout.tp))
    elif key == "vp":
        yield from ({key: degree} for degree in (1, 2, 3, 4))
    elif key == "micro":
        seqs = (facts.global_batch_seqs or 0) // layout.dp
        yield from ({"microbatches_per_step": m} for m in {*_divisors(max(1, seqs)), layout.pp})
    elif key == "zero":
        yield from ({key: stage} for stage in (2, 1, 0))
    elif key == "schedule":
        yield from ({key: name, "vp": 0} for name in _SCHEDULES)
    elif key != "cp_kind" or layout.cp > 1:
        off: dict[str, tuple[Any, ...]] = {"recompute": ("none",), "sp": (False,), "cp_kind": ("allgather", "ring")}
        yield from ({key: value} for value in off[key])


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return small + [number // n for n in reversed(small) if n * n != number]


def _with_rest(layout: Layout, ranks: int) -> Layout:
    """Give data parallel what the other axes leave, on the axis that the layout uses; unchanged if it can't."""
    fixed = layout.pp * layout.cp * layout.tp
    rest, left = divmod(ranks, fixed)
    if left or not rest:
        return layout
    if layout.dp_replicate > 1 and layout.dp_shard > 1:
        shard, uneven = divmod(rest, layout.dp_replicate)
        return layout if uneven else replace(layout, dp_shard=shard)
    is_sharded = layout.dp_shard > 1 or layout.zero > 0 or layout.ep > 1
    return replace(layout, dp_shard=rest if is_sharded else 1, dp_replicate=1 if is_sharded else rest)


def _distance(asked: Layout, other: Layout) -> float:
    """How much was changed: doublings of degrees, and steps of the choices a user makes on purpose."""
    degrees = {"pp": 1.0, "cp": 1.0, "tp": 1.0, "ep": 1.0, "vp": 0.5, "dp": 0.1, "num_microbatches": 0.25}
    doublings = sum(w * abs(log2(getattr(asked, key) / getattr(other, key))) for key, w in degrees.items())
    choices = {"schedule": 1.5, "recompute": 1.0, "sp": 1.0, "cp_kind": 0.75}
    changed = sum(weight for key, weight in choices.items() if getattr(asked, key) != getattr(other, key))
    return doublings + changed + 0.75 * abs(asked.zero - other.zero)
