"""Cuts into stages: every layer once, and no better cut exists."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import LayoutError
from trireme.plan import balance_cuts


def stage_costs(costs: list[int], cuts: tuple[int, ...]) -> list[int]:
    return [sum(costs[start:end]) for start, end in pairwise((0, *cuts, len(costs)))]


@given(costs=st.lists(st.integers(0, 9), min_size=1, max_size=9), data=st.data())
@settings(max_examples=200, deadline=None)
def test_the_dearest_stage_is_as_cheap_as_any_cut_allows(costs: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(costs)))
    cuts = balance_cuts(costs, num_stages=num_stages)
    assert len(cuts) == num_stages - 1
    assert all(start < end for start, end in pairwise((0, *cuts, len(costs))))
    best = min(max(stage_costs(costs, tried)) for tried in combinations(range(1, len(costs)), num_stages - 1))
    assert max(stage_costs(costs, cuts)) == best


@pytest.mark.parametrize("num_stages", [2, 3, 4, 6])
def test_pip_04_seven_layers_are_each_in_one_stage(num_stages: int) -> None:
    cuts = balance_cuts([1.0] * 7, num_stages=num_stages)
    stages = [range(start, end) for start, end in pairwise((0, *cuts, 7))]
    assert [layer for stage in stages for layer in stage] == list(range(7))


def test_a_heavy_head_leaves_fewer_layers_to_the_last_stage() -> None:
    assert balance_cuts([1, 1, 1, 1, 1, 1, 1, 1 + 2], num_stages=2) == (5,)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(LayoutError, match="3 layers can't be cut into 4 stages"):
        balance_cuts([1, 1, 1], num_stages=4)
