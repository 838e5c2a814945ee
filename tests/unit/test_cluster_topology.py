"""Which links a group of ranks uses: a pure function of rank lists."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.cluster import axis_span, parse_cluster, span_of, widest_span
from trireme.errors import LayoutError

DGX = parse_cluster("h100:8x4")


def shape(span):
    return [(level.tier, level.fan, level.rails) for level in span.levels]


def test_a_group_inside_a_node_never_leaves_it():
    span = span_of(range(8, 16), cluster=DGX)
    assert shape(span) == [("node", 8, 1)]
    assert span.is_inside_a_node


def test_a_group_of_one_rank_per_node_uses_one_rail():
    assert shape(span_of([3, 11, 19, 27], cluster=DGX)) == [("cluster", 4, 1)]


def test_a_group_of_whole_nodes_uses_every_rail():
    span = span_of(range(32), cluster=DGX)
    assert shape(span) == [("node", 8, 1), ("cluster", 4, 8)]
    assert [level.hops for level in span.levels] == [28, 3]
    assert span.label == "8 node x 4 cluster"


def test_a_group_that_cuts_nodes_unevenly_is_held_up_by_the_fewest_rails():
    assert shape(span_of(range(6, 18), cluster=DGX)) == [("node", 8, 1), ("cluster", 3, 2)]


def test_a_group_of_one_talks_to_nobody():
    assert span_of([5], cluster=DGX).levels == ()


def test_a_rack_of_nvlink_is_one_tier_whatever_its_trays():
    trays = parse_cluster("gb200:4x36")
    assert shape(span_of(range(72), cluster=trays)) == [("rack", 72, 1)]
    assert shape(span_of(range(144), cluster=trays)) == [("rack", 72, 1), ("cluster", 2, 72)]


def test_cards_in_two_sockets_share_the_way_between_them():
    box = parse_cluster("4090:8")
    assert shape(span_of(range(4), cluster=box)) == [("socket", 4, 1)]
    span = span_of(range(8), cluster=box)
    assert shape(span) == [("socket", 4, 1), ("node", 2, 4)]
    assert span.levels[1].bytes_per_s == pytest.approx(10e9)


def test_pods_thin_the_network_only_beyond_themselves():
    cluster = parse_cluster("h100:8x64,pod=16,oversub=4")
    assert [tier.name for tier in cluster.tiers] == ["node", "pod", "cluster"]
    inside = span_of(range(0, 128, 8), cluster=cluster).levels[-1].bytes_per_s
    beyond = span_of(range(0, 512, 128), cluster=cluster).levels[-1].bytes_per_s
    assert inside == pytest.approx(4 * beyond)


def test_without_pods_oversubscription_thins_all_of_the_network():
    full, thin = (parse_cluster(f"h100:8x4{more}").tiers[-1].link.bytes_per_s for more in ("", ",oversub=2"))
    assert full == 2 * thin


def test_a_part_of_a_node_has_its_part_of_the_cards():
    assert parse_cluster("h100:4x2").cards_per_node == 4
    assert parse_cluster("h100:8x2").network_bytes_per_s == 50e9
    assert parse_cluster("a100-80gb:8x2,opa=100,cards=4").network_bytes_per_s == 6.25e9


def test_the_worst_group_of_an_axis_sets_its_pace():
    groups = [range(start, start + 6) for start in range(0, 24, 6)]
    assert shape(widest_span(groups, cluster=DGX))[-1][0] == "cluster"


_CLUSTERS = ["h100:8x4", "h100:4x6", "gb200:4x12", "4090:8x3", "h100:8x8,pod=2,oversub=3", "cpu:12"]


@given(text=st.sampled_from(_CLUSTERS), data=st.data())
@settings(max_examples=80, deadline=None)
def test_an_axis_is_its_worst_group_found_one_by_one(text, data):
    cluster = parse_cluster(text)
    divisors = [d for d in range(1, cluster.num_ranks + 1) if cluster.num_ranks % d == 0]
    block = data.draw(st.sampled_from(divisors))
    stride = data.draw(st.sampled_from([d for d in divisors if block % d == 0]))
    starts = [b + s for b in range(0, cluster.num_ranks, block) for s in range(stride)]
    groups = [range(start, start + block, stride) for start in starts]
    found = axis_span(degree=block // stride, stride=stride, cluster=cluster)
    worst = widest_span(groups, cluster=cluster)
    assert shape(found) == shape(worst)


@given(ranks=st.sets(st.integers(0, 31), min_size=1))
def test_hops_of_a_ring_are_one_less_than_its_ranks(ranks):
    span = span_of(sorted(ranks), cluster=DGX)
    assert sum(level.hops for level in span.levels) == len(ranks) - 1


def test_ranks_outside_or_twice_are_refused():
    for ranks, key in (([], "no_group"), ([32], "no_such_rank"), ([-1], "no_such_rank"), ([1, 2, 1], "rank_twice")):
        with pytest.raises(LayoutError) as caught:
            span_of(ranks, cluster=DGX)
        assert caught.value.key == f"cluster.{key}"
    with pytest.raises(LayoutError, match="5 ranks with stride 1"):
        axis_span(degree=5, stride=1, cluster=DGX)
