"""Where to cut a row of layers into stages so that the slowest stage is as fast as can be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from trireme.errors import LayoutError


def balance_cuts(costs: Sequence[float], *, num_stages: int) -> tuple[int, ...]:
    """Give the layer at which each stage after the first begins; every layer is in one stage, no stage is empty.

    The dearest stage costs the least that any cut allows. ``costs`` are those of the layers in order, at least 0;
    what stands before or after the layers is added to the first or last of them.

    Raises:
        LayoutError: There are fewer layers than stages.
    """
    if not 1 <= num_stages <= len(costs):
        raise LayoutError("layout.too_few_layers", layers=len(costs), stages=num_stages)
    ends = [0.0, *accumulate(costs)]
    table = _worst_stages(ends, num_stages=num_stages)
    cuts: list[int] = []
    last = len(costs)
    for stages in range(num_stages, 1, -1):
        last = _best_cut(table[stages - 1], ends, end=last, stages=stages)
        cuts.insert(0, last)
    return tuple(cuts)


def _worst_stages(ends: list[float], *, num_stages: int) -> list[list[float]]:
    """Entry [s][n]: the dearest of s stages over the first n layers, cut as well as can be."""
    infinite = float("inf")
    table = [[infinite] * len(ends), list(ends)]
    for stages in range(2, num_stages + 1):
        row = [infinite] * len(ends)
        for end in range(stages, len(ends)):
            cut = _best_cut(table[stages - 1], ends, end=end, stages=stages)
            row[end] = max(table[stages - 1][cut], ends[end] - ends[cut])
        table.append(row)
    return table


def _best_cut(before: list[float], ends: list[float], *, end: int, stages: int) -> int:
    """Where the last of ``stages`` stages begins: earlier stages grow with the cut as this one shrinks, so bisect."""
    crossing = bisect_left(
        range(end), True, lo=stages - 1, hi=end - 1, key=lambda cut: before[cut] >= ends[end] - ends[cut]
    )
    choices = (crossing, max(stages - 1, crossing - 1))
    return min(choices, key=lambda cut: max(before[cut], ends[end] - ends[cut]))
