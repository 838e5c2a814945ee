"""The pipeline's part of a step: the action list of the schedule, played with the stages' own times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from trireme.plan.schedule import Schedule, ScheduleName, build_schedule, stages_of_rank
from trireme.plan.simulate import StageCost, simulate

Effort = Literal["formula", "steady", "whole"]
"""``whole``: every action is played. ``steady``: as many rounds as it takes until they repeat. ``formula``: none, the
slowest rank's work and the time to reach it and come back."""

_ROUNDS = 3
"""Rounds of micro-batches after which every further round takes as long as the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """How long the pipeline runs.

    ``slack_s`` is how long before the end each rank is done; ``busy_s`` how long each works.
    """

    makespan_s: float
    busy_s: tuple[float, ...]
    slack_s: tuple[float, ...]

    @property
    def bubble_ratio(self) -> float:
        """Share of the ranks' time that is not work; m / (m + p - 1) of it is with equal stages under 1f1b."""
        total = self.makespan_s * len(self.busy_s)
        return 1.0 - sum(self.busy_s) / total if total else 0.0


def pipeline_time(
    name: ScheduleName,
    *,
    pp: int,
    vp: int,
    num_microbatches: int,
    costs: Sequence[StageCost],
    sends_s: float = 0.0,
    hides_sends: bool = True,
    effort: Effort = "steady",
) -> PipelineTime:
    """Play the schedule and give its length.

    Schedules repeat themselves once the pipeline is full, so a long one is played for a few rounds and continued.
    """
    if pp == 1:
        once_s = sum(cost.forward_s + cost.input_grad_s + cost.weight_grad_s for cost in costs)
        return PipelineTime(makespan_s=once_s * num_microbatches, busy_s=(once_s * num_microbatches,), slack_s=(0.0,))
    if effort == "formula":
        return _formula(name, pp=pp, vp=vp, num_microbatches=num_microbatches, costs=costs, sends_s=sends_s)
    play = _Player(name=name, pp=pp, vp=vp, costs=tuple(costs), sends_s=sends_s, hides_sends=hides_sends)
    short = _ROUNDS * pp + num_microbatches % pp
    if effort == "whole" or num_microbatches <= short + pp:
        return play(num_microbatches)
    first, second = play(short - pp), play(short)
    more = (num_microbatches - short) / pp
    return PipelineTime(
        makespan_s=second.makespan_s + more * (second.makespan_s - first.makespan_s),
        busy_s=tuple(busy * num_microbatches / short for busy in second.busy_s),
        slack_s=second.slack_s,
    )


def _formula(
    name: ScheduleName, *, pp: int, vp: int, num_microbatches: int, costs: Sequence[StageCost], sends_s: float
) -> PipelineTime:
    """Work of the slowest rank, and one micro-batch through the other ranks' first chunks and back.

    Where weight gradients wait, they fill that time; the V shape leaves nothing of it.
    """
    once = [sum(_work_s(costs[stage]) for stage in stages_of_rank(rank, name=name, pp=pp, vp=vp)) for rank in range(pp)]
    slowest = max(range(pp), key=once.__getitem__)
    around = [costs[stage] for stage in range(pp) if stage != slowest]
    fill_s = sum(_work_s(cost) for cost in around)
    if name in ("zb", "zbv"):
        fill_s = max(0.0, fill_s - 2 * sum(cost.weight_grad_s for cost in around)) if name == "zb" else 0.0
    sent_s = 2 * sends_s * ((pp - 1) + (num_microbatches if vp == 1 and name != "gpipe" else 0) * (pp - 1) / pp)
    busy = tuple(num_microbatches * work_s for work_s in once)
    makespan_s = busy[slowest] + fill_s + sent_s
    return PipelineTime(
        makespan_s=makespan_s, busy_s=busy, slack_s=tuple(fill_s * rank / max(1, pp - 1) / 2 for rank in range(pp))
    )


def _work_s(cost: StageCost) -> float:
    return cost.forward_s + cost.input_grad_s + cost.weight_grad_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    name: ScheduleName
    pp: int
    vp: int
    costs: tuple[StageCost, ...]
    sends_s: float
    hides_sends: bool

    def __call__(self, num_microbatches: int) -> PipelineTime:
        schedule = _schedule(self.name, self.pp, self.vp, num_microbatches)
        timeline = simulate(schedule, costs=self.costs, p2p_s=self.sends_s, overlap=self.hides_sends)
        ends = [rank.events[-1].end_s for rank in timeline.ranks]
        return PipelineTime(
            makespan_s=timeline.makespan_s,
            busy_s=tuple(rank.busy_s for rank in timeline.ranks),
            slack_s=tuple(timeline.makespan_s - end for end in ends),
        )


@lru_cache(maxsize=64)
def _schedule(name: ScheduleName, pp: int, vp: int, num_microbatches: int) -> Schedule:
    return build_schedule(name, pp=pp, vp=vp, num_microbatches=num_microbatches)
