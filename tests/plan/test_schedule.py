"""Schedules: complete, free of deadlock, bounded in memory, for any ranks, chunks and micro-batches."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from trireme.errors import LayoutError
from trireme.plan import (
    SCHEDULE_NAMES,
    Action,
    Schedule,
    ScheduleName,
    build_schedule,
    check_schedule,
    count_in_flight,
    in_flight_bound,
    messages,
)

DEGREES = (1, 2, 3, 4, 6, 8)
MICROBATCHES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 23, 24)


def chunk_counts(name: ScheduleName) -> tuple[int, ...]:
    return {"gpipe": (1, 2, 3), "interleaved": (1, 2, 3, 4), "zbv": (2,)}.get(name, (1,))


def schedules(name: ScheduleName) -> list[Schedule]:
    every = product(DEGREES, chunk_counts(name), MICROBATCHES)
    return [build_schedule(name, pp=pp, vp=vp, num_microbatches=count) for pp, vp, count in every]


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_every_action_runs_once_after_what_it_needs_and_no_rank_waits_for_ever(name: ScheduleName) -> None:
    for schedule in schedules(name):
        check_schedule(schedule)


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_pln_08_activations_in_flight_are_those_of_the_formula_on_every_rank(name: ScheduleName) -> None:
    for schedule in schedules(name):
        counted = [peak.count for peak in count_in_flight(schedule)]
        bounds = [
            in_flight_bound(name, pp=schedule.pp, vp=schedule.vp, num_microbatches=schedule.num_microbatches, rank=rank)
            for rank in range(schedule.pp)
        ]
        short = name == "zbv" and schedule.num_microbatches < 2 * schedule.pp
        assert all(count <= bound for count, bound in zip(counted, bounds, strict=True)) if short else counted == bounds


def test_pln_08_two_ranks_with_two_chunks_and_four_microbatches_hold_five_and_three() -> None:
    schedule = build_schedule("interleaved", pp=2, vp=2, num_microbatches=4)
    assert [peak.count for peak in count_in_flight(schedule)] == [5, 3]


@pytest.mark.parametrize("name", SCHEDULE_NAMES)
def test_outputs_and_gradients_are_each_used_in_the_order_they_are_sent(name: ScheduleName) -> None:
    for schedule in schedules(name):
        for (_, receiver), sent in messages(schedule).items():
            awaited = [schedule.awaited_by(action) for action in schedule.ranks[receiver]]
            for kind in ("F", "B"):
                wanted = [message for message in awaited if message in set(sent) and message.kind == kind]
                assert wanted == [message for message in sent if message.kind == kind]


def test_on_one_rank_nothing_is_sent() -> None:
    for name in SCHEDULE_NAMES:
        assert messages(build_schedule(name, pp=1, vp=3, num_microbatches=5)) == {}


def test_stages_go_round_the_ranks_or_down_and_up_again() -> None:
    interleaved = build_schedule("interleaved", pp=4, vp=2, num_microbatches=4)
    assert [interleaved.stages_of(rank) for rank in range(4)] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    shaped_as_v = build_schedule("zbv", pp=4, num_microbatches=4)
    assert [shaped_as_v.stages_of(rank) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    for schedule in (interleaved, shaped_as_v):
        assert all(stage in schedule.stages_of(schedule.rank_of(stage)) for stage in range(8))


def test_1f1b_on_two_ranks_reads_as_in_the_paper() -> None:
    schedule = build_schedule("1f1b", pp=2, num_microbatches=3)
    said = ["".join(f"{action.kind}{action.microbatch} " for action in rank).strip() for rank in schedule.ranks]
    assert said == ["F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"]


def broken(schedule: Schedule, actions: list[Action]) -> Schedule:
    return replace(schedule, ranks=(tuple(actions), *schedule.ranks[1:]))


def test_a_broken_schedule_is_refused_with_the_action_that_breaks_it() -> None:
    good = build_schedule("zb", pp=2, num_microbatches=2)
    first = list(good.ranks[0])
    with pytest.raises(LayoutError, match=r"lacks F\(stage 0, micro-batch 0\) on rank 0"):
        check_schedule(broken(good, first[1:]))
    with pytest.raises(LayoutError, match="twice"):
        check_schedule(broken(good, [*first, first[-1]]))
    with pytest.raises(LayoutError, match="does not hold that stage"):
        check_schedule(broken(good, [*first, Action("F", 1, 0)]))
    with pytest.raises(LayoutError, match="waits for ever"):
        check_schedule(broken(good, first[::-1]))


def test_ranks_that_wait_for_each_other_are_found() -> None:
    good = build_schedule("1f1b", pp=2, num_microbatches=2)
    # Rank 0 wants the gradient of micro-batch 1 before it has sent micro-batch 1 on.
    crossed = [Action("F", 0, 0), Action("B", 0, 1), Action("F", 0, 1), Action("B", 0, 0)]
    with pytest.raises(LayoutError, match=r"rank \d waits for ever before"):
        check_schedule(broken(good, crossed))
