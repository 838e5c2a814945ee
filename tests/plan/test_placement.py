"""Where ranks stand: the agreed order, and groups that cover the world once."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import LayoutError
from trireme.plan import (
    AXES,
    Coordinate,
    Layout,
    coordinate,
    expert_copies,
    expert_groups,
    groups_of,
    rank_at,
    ranks_of,
)

degrees = st.integers(1, 3)
layouts = st.builds(Layout, pp=degrees, dp_replicate=degrees, dp_shard=degrees, cp=degrees, tp=degrees)


def test_tp_is_fastest_then_cp_then_shards_then_copies_and_pp_is_slowest() -> None:
    layout = Layout(pp=2, dp_replicate=2, dp_shard=2, cp=2, tp=2)
    for rank, axis in ((1, "tp"), (2, "cp"), (4, "dp_shard"), (8, "dp_replicate"), (16, "pp")):
        assert coordinate(layout, rank) == Coordinate(**{axis: 1})
    assert ranks_of(layout, "tp", rank=5) == (4, 5)
    assert ranks_of(layout, "pp", rank=5) == (5, 21)
    assert ranks_of(layout, ("dp_replicate", "dp_shard"), rank=1) == (1, 5, 9, 13)


@given(layout=layouts)
@settings(max_examples=60, deadline=None)
def test_every_rank_has_one_place_and_every_place_one_rank(layout: Layout) -> None:
    places = [coordinate(layout, rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size
    assert [rank_at(layout, place) for place in places] == list(range(layout.world_size))


@given(layout=layouts)
@settings(max_examples=20, deadline=None)
def test_groups_of_any_axes_cover_the_world_once_and_differ_only_there(layout: Layout) -> None:
    places = [coordinate(layout, rank) for rank in range(layout.world_size)]
    for size in range(len(AXES) + 1):
        for axes in combinations(AXES, size):
            groups = groups_of(layout, axes)
            assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
            for group in groups:
                others = {tuple(getattr(places[rank], axis) for axis in AXES if axis not in axes) for rank in group}
                assert len(others) == 1
                assert list(group) == sorted(group)


def test_the_article_calls_64_parts_512_gpus_but_each_part_is_there_8_times() -> None:
    layout = Layout(dp_replicate=8, tp=4, pp=16)
    assert layout.world_size == 512
    parts = {(coordinate(layout, rank).pp, coordinate(layout, rank).tp) for rank in range(512)}
    assert len(parts) == 64
    assert len(groups_of(layout, "dp_replicate")) == 64
    assert all(len(group) == 8 for group in groups_of(layout, "dp_replicate"))


def test_pln_02_tensor_parallel_groups_of_8_lie_inside_a_node_of_8() -> None:
    for group in groups_of(Layout(pp=2, tp=8), "tp"):
        assert len({rank // 8 for rank in group}) == 1


def test_par_16_experts_are_shared_by_neighbours_and_copied_by_the_rest_of_the_stage() -> None:
    layout = Layout(pp=2, dp_shard=2, tp=2, ep=2)
    assert expert_groups(layout) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert expert_copies(layout) == ((0, 2), (1, 3), (4, 6), (5, 7))
    whole = Layout(dp_shard=4, ep=4)
    assert expert_groups(whole) == ((0, 1, 2, 3),)
    assert expert_copies(whole) == ((0,), (1,), (2,), (3,))
    assert [coordinate(layout, rank).ep for rank in range(4)] == [0, 1, 0, 1]


def test_a_rank_outside_the_world_is_refused() -> None:
    with pytest.raises(LayoutError, match="Rank 4 is not among the 4 ranks"):
        coordinate(Layout(tp=4), 4)
