"""Proof that a schedule runs: every action once, on its rank, after what it needs, and nothing waits for ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from trireme.errors import LayoutError
from trireme.plan.schedule import Action, Schedule, ScheduleName, microbatch_groups


def needs_of(action: Action, *, num_stages: int) -> tuple[tuple[str, int, int], ...]:
    """Give what must be done before: ("F" or "I", stage, micro-batch); a whole backward counts as its "I"."""
    kind, stage, microbatch = action
    if kind == "F":
        return (("F", stage - 1, microbatch),) if stage else ()
    if kind == "W":
        return (("I", stage, microbatch),)
    own = ("F", stage, microbatch)
    return (own, ("I", stage + 1, microbatch)) if stage + 1 < num_stages else (own,)


def check_schedule(schedule: Schedule) -> None:
    """Run the lists without doing anything, and say so if they would not run to their end.

    Raises:
        LayoutError: An action is missing, there twice or on another rank, or ranks wait for each other.
    """
    _check_complete(schedule)
    _check_order(schedule)


def _check_complete(schedule: Schedule) -> None:
    for rank, actions in enumerate(schedule.ranks):
        counts = Counter(_parts(actions))
        wanted = set(_wanted(schedule, rank))
        for part, count in counts.items():
            if count > 1:
                raise _fault("schedule_twice", schedule, rank=rank, action=_name(part))
            if part not in wanted:
                raise _fault("schedule_foreign", schedule, rank=rank, action=_name(part))
        for part in sorted(wanted - set(counts)):
            raise _fault("schedule_missing", schedule, rank=rank, action=_name(part))


def _parts(actions: tuple[Action, ...]) -> Iterator[Action]:
    """Yield every action with a whole backward as its two halves."""
    for action in actions:
        if action.kind == "B":
            yield action._replace(kind="I")
            yield action._replace(kind="W")
        else:
            yield action


def _wanted(schedule: Schedule, rank: int) -> Iterator[Action]:
    for stage in schedule.stages_of(rank):
        for microbatch in range(schedule.num_microbatches):
            yield Action("F", stage, microbatch)
            yield Action("I", stage, microbatch)
            yield Action("W", stage, microbatch)


def _check_order(schedule: Schedule) -> None:
    """Let each rank go on until what it needs is not there; the rank that makes it wakes it."""
    done: set[tuple[str, int, int]] = set()
    waiting: dict[tuple[str, int, int], int] = {}
    places = [0] * schedule.pp
    awake = list(range(schedule.pp))
    while awake:
        rank = awake.pop()
        actions = schedule.ranks[rank]
        while places[rank] < len(actions):
            action = actions[places[rank]]
            missing = next(
                (need for need in needs_of(action, num_stages=schedule.num_stages) if need not in done), None
            )
            if missing is not None:
                waiting[missing] = rank
                break
            made = ("I" if action.kind == "B" else action.kind, action.stage, action.microbatch)
            done.add(made)
            places[rank] += 1
            if made in waiting:
                awake.append(waiting.pop(made))
    for rank, actions in enumerate(schedule.ranks):
        if places[rank] < len(actions):
            raise _fault("schedule_stuck", schedule, rank=rank, action=_name(actions[places[rank]]))


def _name(action: Action) -> str:
    return f"{action.kind}(stage {action.stage}, micro-batch {action.microbatch})"


def _fault(key: str, schedule: Schedule, *, rank: int, action: str) -> LayoutError:
    return LayoutError(f"layout.{key}", schedule=schedule.name, rank=rank, action=action)


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """The most activations of micro-batches a rank holds at once (one per stage), and the action that reaches it."""

    rank: int
    count: int
    action: Action


def count_in_flight(schedule: Schedule) -> tuple[InFlight, ...]:
    """Count, for each rank, activations that wait for their backward; a split backward frees them with its weights."""
    return tuple(_peak(rank, actions) for rank, actions in enumerate(schedule.ranks))


def _peak(rank: int, actions: tuple[Action, ...]) -> InFlight:
    held = 0
    best = InFlight(rank=rank, count=0, action=actions[0])
    for action in actions:
        if action.kind == "F":
            held += 1
            if held > best.count:
                best = InFlight(rank=rank, count=held, action=action)
        elif action.kind != "I":
            held -= 1
    return best


def in_flight_bound(name: ScheduleName, *, pp: int, vp: int, num_microbatches: int, rank: int) -> int:
    """Give by formula what ``count_in_flight`` counts; for ``zbv`` below 2 ``pp`` micro-batches, at most.

    Source:
        Narayanan et al. 2021 (1f1b, interleaved), Qi et al. 2023 and 2024 (zb, zbv), as cited in schedule.py.
    """
    if name == "gpipe":
        return vp * num_microbatches
    if name == "1f1b":
        return min(num_microbatches, pp - rank)
    if name == "zb":
        return min(num_microbatches, pp)
    if name == "zbv":
        return min(2 * num_microbatches, 2 * pp)
    group = len(microbatch_groups(num_microbatches, pp=pp)[0])
    return min(num_microbatches * vp, 2 * (pp - rank - 1) + (vp - 1) * group + 1)
