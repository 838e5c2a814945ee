"""The time of a schedule against what is known: bubbles by formula, lower bounds, unequal stages, transfers."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import LayoutError
from trireme.plan import (
    SCHEDULE_NAMES,
    ScheduleName,
    StageCost,
    Timeline,
    build_schedule,
    one_f_one_b_utilisation,
    simulate,
)

ROUNDING = 1e-9
"""Sums of a few hundred times in double precision."""


def unit_costs(num_stages: int, *, per_rank: int = 1) -> list[StageCost]:
    """Forward, input gradient and weight gradient of all stages of a rank take one second each."""
    part_s = 1.0 / per_rank
    return [StageCost(forward_s=part_s, input_grad_s=part_s, weight_grad_s=part_s, activation_bytes=1)] * num_stages


def timed(name: ScheduleName, *, pp: int, num_microbatches: int, vp: int = 1) -> Timeline:
    schedule = build_schedule(name, pp=pp, vp=vp, num_microbatches=num_microbatches)
    return simulate(schedule, costs=unit_costs(schedule.num_stages, per_rank=schedule.vp))


def bubble_s(name: ScheduleName, *, pp: int, num_microbatches: int, vp: int = 1) -> float:
    return timed(name, pp=pp, num_microbatches=num_microbatches, vp=vp).makespan_s - 3.0 * num_microbatches


def test_the_article_claims_81_percent_but_16_stages_with_4_microbatches_use_4_of_19() -> None:
    assert timed("1f1b", pp=16, num_microbatches=4).utilisation_ratio == pytest.approx(4 / 19)
    assert timed("1f1b", pp=4, num_microbatches=16).utilisation_ratio == pytest.approx(16 / 19)
    assert timed("1f1b", pp=16, num_microbatches=1).utilisation_ratio == pytest.approx(1 / 16)
    assert one_f_one_b_utilisation(pp=16, num_microbatches=4) == pytest.approx(4 / 19)


def test_1f1b_and_gpipe_use_m_of_m_plus_p_minus_1_for_all_degrees() -> None:
    for pp in range(1, 9):
        for count in range(1, 25):
            expected = pytest.approx(one_f_one_b_utilisation(pp=pp, num_microbatches=count))
            assert timed("1f1b", pp=pp, num_microbatches=count).utilisation_ratio == expected
            assert timed("gpipe", pp=pp, num_microbatches=count).utilisation_ratio == expected


def test_interleaving_divides_the_bubble_by_the_chunks_for_any_count_that_fills_the_pipeline() -> None:
    for pp in range(1, 9):
        for vp in range(1, 5):
            for count in range(pp, 25):
                expected = pytest.approx(3 * (pp - 1) / vp, abs=ROUNDING)
                assert bubble_s("interleaved", pp=pp, vp=vp, num_microbatches=count) == expected


def test_interleaving_too_few_microbatches_never_takes_longer_than_1f1b() -> None:
    for pp in range(2, 9):
        for vp in range(2, 5):
            for count in range(1, pp):
                plain = bubble_s("1f1b", pp=pp, num_microbatches=count)
                assert bubble_s("interleaved", pp=pp, vp=vp, num_microbatches=count) <= plain + ROUNDING


def test_zero_bubble_leaves_a_third_of_the_bubble_of_1f1b_once_the_pipeline_is_full() -> None:
    for pp in range(1, 9):
        for count in range(pp, 25):
            assert bubble_s("zb", pp=pp, num_microbatches=count) == pytest.approx(pp - 1, abs=ROUNDING)


def test_zero_bubble_v_leaves_only_the_way_to_the_last_rank() -> None:
    # The last rank can't start before pp - 1 chunks of a forward: no order of actions is shorter.
    for pp in range(1, 9):
        for count in range(2 * pp, 25):
            assert bubble_s("zbv", pp=pp, num_microbatches=count) == pytest.approx((pp - 1) / 2, abs=ROUNDING)


@given(
    name=st.sampled_from(SCHEDULE_NAMES),
    pp=st.integers(1, 6),
    vp=st.integers(1, 3),
    count=st.integers(1, 12),
    seconds=st.lists(st.integers(1, 9), min_size=54, max_size=54),
    cut_s=st.integers(0, 3),
    overlap=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_no_action_starts_before_its_rank_is_free_and_its_tensor_has_arrived(
    name: ScheduleName, pp: int, vp: int, count: int, seconds: list[int], cut_s: int, overlap: bool
) -> None:
    schedule = build_schedule(name, pp=pp, vp=vp, num_microbatches=count)
    costs = [
        StageCost(forward_s=seconds[3 * s], input_grad_s=seconds[3 * s + 1], weight_grad_s=seconds[3 * s + 2])
        for s in range(schedule.num_stages)
    ]
    timeline = simulate(schedule, costs=costs, p2p_s=cut_s, overlap=overlap)
    ends = {
        (("B" if event.kind == "I" else event.kind), event.stage, event.microbatch): event.end_s
        for rank in timeline.ranks
        for event in rank.events
    }
    for actions, rank in zip(schedule.ranks, timeline.ranks, strict=True):
        played = [event for event in rank.events if event.kind != "S"]
        assert [(event.kind, event.stage, event.microbatch) for event in played] == [tuple(a) for a in actions]
        assert all(before.end_s <= after.start_s for before, after in zip(rank.events, rank.events[1:], strict=False))
        assert rank.busy_s + rank.sending_s + rank.idle_s == pytest.approx(timeline.makespan_s)
        for action, event in zip(actions, played, strict=True):
            message = schedule.awaited_by(action)
            if message is not None:
                assert event.start_s >= ends[message.kind, message.source, message.microbatch] + cut_s
            if action.kind == "W":
                assert event.start_s >= ends["B", action.stage, action.microbatch]
            if action.kind in "BI":
                assert event.start_s >= ends["F", action.stage, action.microbatch]
    busiest_s = max(rank.busy_s for rank in timeline.ranks)
    assert busiest_s <= timeline.makespan_s
    assert 0 <= timeline.bubble_ratio < 1


def test_the_slowest_stage_sets_the_pace() -> None:
    schedule = build_schedule("1f1b", pp=3, num_microbatches=30)
    fast = StageCost(forward_s=1, input_grad_s=1, weight_grad_s=1)
    slow = StageCost(forward_s=2, input_grad_s=2, weight_grad_s=2)
    timeline = simulate(schedule, costs=[fast, slow, fast])
    assert timeline.ranks[1].idle_s == pytest.approx(timeline.makespan_s - 30 * 6)
    # It pauses only while the pipeline fills and drains, so its pauses don't grow with the micro-batches.
    longer = simulate(build_schedule("1f1b", pp=3, num_microbatches=60), costs=[fast, slow, fast])
    assert longer.ranks[1].idle_s == pytest.approx(timeline.ranks[1].idle_s)
    assert timeline.ranks[0].idle_s > timeline.ranks[1].idle_s


def test_a_transfer_that_overlaps_costs_only_the_way_there_and_back() -> None:
    schedule = build_schedule("gpipe", pp=2, num_microbatches=8)
    alone_s = simulate(schedule, costs=unit_costs(2)).makespan_s
    hidden_s = simulate(schedule, costs=unit_costs(2), p2p_s=0.25).makespan_s
    exposed_s = simulate(schedule, costs=unit_costs(2), p2p_s=0.25, overlap=False).makespan_s
    assert hidden_s == pytest.approx(alone_s + 2 * 0.25)
    assert exposed_s > hidden_s


def test_a_cut_between_two_stages_of_one_rank_costs_nothing() -> None:
    turn = simulate(build_schedule("zbv", pp=1, num_microbatches=4), costs=unit_costs(2, per_rank=2), p2p_s=100.0)
    assert turn.makespan_s == pytest.approx(12.0)


def test_each_cut_may_have_its_own_time() -> None:
    schedule = build_schedule("1f1b", pp=3, num_microbatches=1)
    timeline = simulate(schedule, costs=unit_costs(3), p2p_s=[0.5, 0.25])
    assert timeline.makespan_s == pytest.approx(9 + 2 * 0.75)


def test_the_peak_of_activations_is_named_with_its_action() -> None:
    schedule = build_schedule("1f1b", pp=4, num_microbatches=9)
    costs = [StageCost(forward_s=1, input_grad_s=1, weight_grad_s=1, activation_bytes=10 * (s + 1)) for s in range(4)]
    ranks = simulate(schedule, costs=costs).ranks
    assert [rank.peak_activation_bytes for rank in ranks] == [4 * 10, 3 * 20, 2 * 30, 40]
    assert [rank.peak_count for rank in ranks] == [4, 3, 2, 1]
    assert ranks[0].peak_at.kind == "F"
    assert ranks[0].peak_at.microbatch == 3


def test_what_a_split_backward_frees_early_lowers_the_peak() -> None:
    schedule = build_schedule("zb", pp=4, num_microbatches=8)
    whole = StageCost(forward_s=1, input_grad_s=1, weight_grad_s=1, activation_bytes=10)
    early = StageCost(forward_s=1, input_grad_s=1, weight_grad_s=1, activation_bytes=10, weight_grad_bytes=4)
    assert simulate(schedule, costs=[whole] * 4).ranks[3].peak_activation_bytes == 40
    # Rank 3 has three micro-batches that wait for their weights when it starts the next one.
    assert simulate(schedule, costs=[early] * 4).ranks[3].peak_activation_bytes == 3 * 4 + 10


def test_wrong_numbers_of_costs_or_cuts_are_refused() -> None:
    schedule = build_schedule("1f1b", pp=4, num_microbatches=4)
    with pytest.raises(LayoutError, match="3 stage costs given for a schedule of 4 stages"):
        simulate(schedule, costs=unit_costs(3))
    with pytest.raises(LayoutError, match="4 transfer times given for 3 cuts"):
        simulate(schedule, costs=unit_costs(4), p2p_s=[1.0] * 4)


def test_64_stages_of_512_microbatches_are_timed_within_a_second() -> None:
    schedule = build_schedule("1f1b", pp=64, num_microbatches=512)
    costs = unit_costs(64)
    start_s = time.process_time()
    timeline = simulate(schedule, costs=costs)
    took_s = time.process_time() - start_s
    assert timeline.utilisation_ratio == pytest.approx(512 / 575)
    assert took_s < 1.0
