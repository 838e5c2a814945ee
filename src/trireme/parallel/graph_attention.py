"""Attention that is written out: a product, a softmax over its result, and a product with that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trireme.parallel.graph_record import Ran
from trireme.parallel.graph_tensor import PRODUCTS

_BATCHED = frozenset({"bmm", "baddbmm"})
_MASKED = frozenset({"where", "masked_fill", "masked_fill_", "add", "add_", "baddbmm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Numbers of the calls from the first product to the second; ``is_masked``: something lies on the scores."""

    first: int
    last: int
    calls: tuple[int, ...]
    is_masked: bool


def find_scores(calls: Sequence[Ran]) -> list[Scores]:
    """Find every attention among calls."""
    found = []
    for index, ran in enumerate(calls):
        if "softmax" in ran.name:
            before, after = _behind(calls, index), _ahead(calls, index)
            if before and after and calls[before[0]].name in _BATCHED and calls[after[-1]].name in _BATCHED:
                between = tuple(sorted({*before, index, *after}))
                masked = any(_adds_mask(calls[each]) for each in before)
                found.append(Scores(first=before[0], last=after[-1], calls=between, is_masked=masked))
    return found


def _adds_mask(ran: Ran) -> bool:
    return ran.name in _MASKED and len(ran.inputs) > 1


def _behind(calls: Sequence[Ran], index: int) -> list[int]:
    """Calls that a softmax's input came by, back to the product; none where there is no single one."""
    wanted = {seen.storage for seen in calls[index].inputs}
    path: list[int] = []
    for each in range(index - 1, -1, -1):
        ran = calls[each]
        if not wanted & {seen.storage for seen in ran.outputs}:
            continue
        if ran.name in _BATCHED:
            return [each, *path]
        if ran.name in PRODUCTS:
            return []
        largest = max(ran.inputs, key=lambda seen: seen.numel, default=None)
        if largest is None:
            continue
        wanted.add(largest.storage)
        path.insert(0, each)
    return []


def _ahead(calls: Sequence[Ran], index: int) -> list[int]:
    """Calls that a softmax's result goes through, on to the next product."""
    reached = {seen.storage for seen in calls[index].outputs}
    path: list[int] = []
    for each in range(index + 1, len(calls)):
        ran = calls[each]
        if not reached & {seen.storage for seen in ran.inputs}:
            continue
        path.append(each)
        if ran.name in PRODUCTS:
            return path
        reached |= {seen.storage for seen in ran.outputs}
    return []
