"""How long a schedule takes, which rank waits when, and how much it holds: the action list played with durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from trireme.errors import LayoutError
from trireme.plan.schedule import Action, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """What one micro-batch costs one stage.

    ``activation_bytes`` are kept from the forward on. Where the backward is split, ``weight_grad_bytes`` of them
    (all unless said) wait for the weight gradient after the input gradient is done.
    """

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    activation_bytes: int = 0
    weight_grad_bytes: int | None = None


class Event(NamedTuple):
    """One action, or the send after it (kind "S"), on the clock of the step."""

    rank: int
    kind: str
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimeline:
    """One pipeline rank: when it works, and the most it holds at once.

    ``peak_at`` is the action whose start sees the peak; ``peak_count`` counts activations held then.
    """

    busy_s: float
    sending_s: float
    idle_s: float
    peak_activation_bytes: int
    peak_count: int
    peak_at: Action
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A whole step of the pipeline, without the optimizer."""

    makespan_s: float
    ranks: tuple[RankTimeline, ...]

    @property
    def utilisation_ratio(self) -> float:
        """Share of the ranks' time that is work."""
        total_s = self.makespan_s * len(self.ranks)
        return sum(rank.busy_s for rank in self.ranks) / total_s if total_s else 1.0

    @property
    def bubble_ratio(self) -> float:
        """Share of the ranks' time that is not work: waiting, and sends that nothing hides."""
        return 1.0 - self.utilisation_ratio


def one_f_one_b_utilisation(*, pp: int, num_microbatches: int) -> float:
    """Share of time that equal stages work under 1f1b or gpipe: m / (m + p - 1).

    Source:
        Huang et al. 2019, "GPipe", section 2.3; Narayanan et al. 2021, section 2.2.
    """
    return num_microbatches / (num_microbatches + pp - 1)


def simulate(
    schedule: Schedule,
    *,
    costs: Sequence[StageCost],
    p2p_s: float | Sequence[float] = 0.0,
    overlap: bool = True,
) -> Timeline:
    """Play the schedule: each action starts when its rank is free and what it needs has arrived.

    ``costs`` has one entry per stage; ``p2p_s`` is the time of one tensor across each cut (cut i lies behind
    stage i), nothing where both stages are on one rank. With ``overlap`` a transfer only delays its receiver;
    without, its sender is held as long.

    Raises:
        LayoutError: The numbers of costs or cuts are not those of the schedule, or its ranks wait for each other.
    """
    cuts = _cut_seconds(schedule, p2p_s)
    if len(costs) != schedule.num_stages:
        raise LayoutError("layout.stage_costs", given=len(costs), stages=schedule.num_stages)
    events = _play(schedule, costs=costs, cuts_s=cuts, overlap=overlap)
    makespan_s = max((rank[-1].end_s for rank in events if rank), default=0.0)
    ranks = tuple(
        _summary(schedule.ranks[rank], events=played, costs=costs, makespan_s=makespan_s)
        for rank, played in enumerate(events)
    )
    return Timeline(makespan_s=makespan_s, ranks=ranks)


def _cut_seconds(schedule: Schedule, p2p_s: float | Sequence[float]) -> list[float]:
    num_cuts = schedule.num_stages - 1
    seconds = list(p2p_s) if isinstance(p2p_s, Sequence) else [p2p_s] * num_cuts
    if len(seconds) != num_cuts:
        raise LayoutError("layout.cut_times", given=len(seconds), cuts=num_cuts)
    ranks = [schedule.rank_of(stage) for stage in range(schedule.num_stages)]
    return [0.0 if ranks[cut] == ranks[cut + 1] else seconds[cut] for cut in range(num_cuts)]


def _play(schedule: Schedule, *, costs: Sequence[StageCost], cuts_s: list[float], overlap: bool) -> list[list[Event]]:
    """Advance each rank as far as it can; whoever makes what it waits for wakes it.

    ``ready`` holds when an output (slot ``stage * m + i``) or, after them, a gradient of a stage has arrived
    where it is used. Every list is in order, so no queue of events is needed.
    """
    m = schedule.num_microbatches
    num_stages = schedule.num_stages
    gradients = num_stages * m  # offset of the slots of gradients
    ready: list[float | None] = [None] * (2 * gradients)
    for microbatch in range(m):
        ready[microbatch] = 0.0
        ready[gradients + (num_stages - 1) * m + microbatch] = 0.0
    seconds = {
        "F": [cost.forward_s for cost in costs],
        "B": [cost.input_grad_s + cost.weight_grad_s for cost in costs],
        "I": [cost.input_grad_s for cost in costs],
        "W": [cost.weight_grad_s for cost in costs],
    }
    sleepers: dict[int, int] = {}
    free_s = [0.0] * schedule.pp
    events: list[list[Event]] = [[] for _ in range(schedule.pp)]
    pending = [iter(actions) for actions in schedule.ranks]
    blocked: list[Action | None] = [next(actions, None) for actions in pending]
    awake = list(range(schedule.pp))
    while awake:
        rank = awake.pop()
        now_s, action, played = free_s[rank], blocked[rank], events[rank]
        while action is not None:
            kind, stage, microbatch = action
            slot = stage * m + microbatch + (0 if kind == "F" else gradients)
            arrival_s = ready[slot] if kind != "W" else now_s
            if arrival_s is None:
                sleepers[slot] = rank
                break
            start_s = arrival_s if arrival_s > now_s else now_s
            now_s = start_s + seconds[kind][stage]
            played.append(Event(rank, kind, stage, microbatch, start_s, now_s))
            target = stage + 1 if kind == "F" else stage - 1
            if kind != "W" and 0 <= target < num_stages:
                cut_s = cuts_s[min(stage, target)]
                made = target * m + microbatch + (0 if kind == "F" else gradients)
                ready[made] = now_s + cut_s
                if made in sleepers:
                    awake.append(sleepers.pop(made))
                if cut_s and not overlap:
                    played.append(Event(rank, "S", stage, microbatch, now_s, now_s + cut_s))
                    now_s += cut_s
            action = next(pending[rank], None)
        free_s[rank], blocked[rank] = now_s, action
    for rank, action in enumerate(blocked):
        if action is not None:
            name = f"{action.kind}(stage {action.stage}, micro-batch {action.microbatch})"
            raise LayoutError("layout.schedule_stuck", schedule=schedule.name, rank=rank, action=name)
    return events


def _summary(
    actions: tuple[Action, ...], *, events: list[Event], costs: Sequence[StageCost], makespan_s: float
) -> RankTimeline:
    """Add up one rank; what it holds changes at its own actions only."""
    sending_s = sum(event.end_s - event.start_s for event in events if event.kind == "S")
    busy_s = sum(event.end_s - event.start_s for event in events) - sending_s
    held_bytes = peak_bytes = held = peak_count = 0
    peak_at = actions[0]
    for action in actions:
        kind = action.kind
        cost = costs[action.stage]
        kept = cost.activation_bytes if cost.weight_grad_bytes is None else cost.weight_grad_bytes
        if kind == "F":
            held += 1
            held_bytes += cost.activation_bytes
            if (held_bytes, held) > (peak_bytes, peak_count):
                peak_bytes, peak_count, peak_at = held_bytes, held, action
        elif kind == "I":
            held_bytes -= cost.activation_bytes - kept
        else:
            held -= 1
            held_bytes -= kept if kind == "W" else cost.activation_bytes
    return RankTimeline(
        busy_s=busy_s,
        sending_s=sending_s,
        idle_s=makespan_s - busy_s - sending_s,
        peak_activation_bytes=peak_bytes,
        peak_count=peak_count,
        peak_at=peak_at,
        events=tuple(events),
    )
