"""Which micro-batch runs when: one list of actions per pipeline rank, timed by the simulator and run by the executor.

An action is a kind, a stage and a micro-batch. What must be sent follows from those three, so no list holds it:
a forward passes its output to the next stage, a backward its gradient to the stage before (``messages``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Kind = Literal["F", "B", "I", "W"]
"""Forward, whole backward, backward to the input only, and backward to the weights only."""

ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb", "zbv"]

SCHEDULE_NAMES: tuple[ScheduleName, ...] = get_args(ScheduleName)


class Action(NamedTuple):
    """One piece of work of one stage on one micro-batch; a tuple, for a schedule may hold a hundred thousand."""

    kind: Kind
    stage: int
    microbatch: int


class Message(NamedTuple):
    """A tensor from ``source`` to ``target`` stage: an output after F, a gradient after B or I."""

    kind: Literal["F", "B"]
    source: int
    target: int
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The action list of every pipeline rank, in order."""

    name: ScheduleName
    pp: int
    vp: int
    num_microbatches: int
    ranks: tuple[tuple[Action, ...], ...]

    @property
    def num_stages(self) -> int:
        """Stages of all ranks."""
        return self.pp * self.vp

    def rank_of(self, stage: int) -> int:
        """Pipeline rank that holds the stage."""
        return rank_of_stage(stage, name=self.name, pp=self.pp)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that the rank holds, in the order of the model."""
        return stages_of_rank(rank, name=self.name, pp=self.pp, vp=self.vp)

    def next_stage(self, action: Action) -> int | None:
        """Stage that takes what the action makes, or None where nothing leaves the stage."""
        if action.kind == "F":
            return action.stage + 1 if action.stage + 1 < self.num_stages else None
        if action.kind == "W" or action.stage == 0:
            return None
        return action.stage - 1

    def message_of(self, action: Action) -> Message | None:
        """What the action sends to another rank, or None."""
        target = self.next_stage(action)
        if target is None or self.rank_of(target) == self.rank_of(action.stage):
            return None
        return Message("F" if action.kind == "F" else "B", action.stage, target, action.microbatch)

    def awaited_by(self, action: Action) -> Message | None:
        """What the action needs from another rank, or None."""
        if action.kind == "W":
            return None
        is_forward = action.kind == "F"
        source = action.stage - 1 if is_forward else action.stage + 1
        if not 0 <= source < self.num_stages or self.rank_of(source) == self.rank_of(action.stage):
            return None
        return Message("F" if is_forward else "B", source, action.stage, action.microbatch)


def rank_of_stage(stage: int, *, name: ScheduleName, pp: int) -> int:
    """Pipeline rank that holds the stage: round and round, or down and up again for ``zbv``."""
    chunk, place = divmod(stage, pp)
    return pp - 1 - place if name == "zbv" and chunk % 2 else place


def stages_of_rank(rank: int, *, name: ScheduleName, pp: int, vp: int) -> tuple[int, ...]:
    """Stages that the rank holds, one for each of its ``vp`` chunks, in the order of the model."""
    return tuple(chunk * pp + (pp - 1 - rank if name == "zbv" and chunk % 2 else rank) for chunk in range(vp))


def num_chunks(name: ScheduleName, *, vp: int) -> int:
    """Stages a rank holds: what ``vp`` says where the schedule has a choice, else the one number it works with."""
    if name in ("gpipe", "interleaved"):
        return vp
    return 2 if name == "zbv" else 1


def build_schedule(name: ScheduleName, *, pp: int, num_microbatches: int, vp: int = 1) -> Schedule:
    """Build the action lists of all ranks, for any number of micro-batches of at least one.

    ``vp`` counts for ``gpipe`` and ``interleaved``; ``1f1b`` and ``zb`` have one stage a rank, ``zbv`` two.
    """
    chunks = num_chunks(name, vp=vp)
    orders: dict[ScheduleName, Callable[[int], Iterator[Step]]] = {
        "gpipe": lambda _: _gpipe(vp=chunks, count=num_microbatches),
        "1f1b": lambda rank: _one_forward_one_backward(rank, pp=pp, count=num_microbatches),
        "interleaved": lambda rank: _interleaved(rank, pp=pp, vp=chunks, count=num_microbatches),
        "zb": lambda rank: _zero_bubble(rank, pp=pp, count=num_microbatches),
        "zbv": lambda rank: _zero_bubble_v(rank, pp=pp, count=num_microbatches),
    }
    ranks = []
    for rank in range(pp):
        stages = stages_of_rank(rank, name=name, pp=pp, vp=chunks)
        ranks.append(tuple(Action(kind, stages[chunk], microbatch) for kind, chunk, microbatch in orders[name](rank)))
    return Schedule(name=name, pp=pp, vp=chunks, num_microbatches=num_microbatches, ranks=tuple(ranks))


def messages(schedule: Schedule) -> dict[tuple[int, int], tuple[Message, ...]]:
    """Give, for each pair (sending rank, receiving rank), its messages in the order they are sent.

    A receiver that posts its receives in this order needs no tags. Outputs alone, and gradients alone, are also
    used in the order they are sent; both together are not always (``zbv``).
    """
    links: dict[tuple[int, int], list[Message]] = {}
    for rank, actions in enumerate(schedule.ranks):
        for action in actions:
            message = schedule.message_of(action)
            if message is not None:
                links.setdefault((rank, schedule.rank_of(message.target)), []).append(message)
    return {link: tuple(sent) for link, sent in links.items()}


Step = tuple[Kind, int, int]
"""Kind, chunk of the rank, micro-batch."""


def _gpipe(*, vp: int, count: int) -> Iterator[Step]:
    """All forwards, chunk by chunk, then all backwards."""
    for chunk in range(vp):
        for microbatch in range(count):
            yield "F", chunk, microbatch
    for chunk in reversed(range(vp)):
        for microbatch in range(count):
            yield "B", chunk, microbatch


def _one_forward_one_backward(rank: int, *, pp: int, count: int) -> Iterator[Step]:
    """Fill what lies behind this rank, then one forward and one backward in turn, then drain.

    Source:
        Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training", section 3.1 (PipeDream-Flush).
    """
    forwards = [(0, microbatch) for microbatch in range(count)]
    yield from _in_turn(forwards, forwards, warmup=pp - rank - 1)


def _interleaved(rank: int, *, pp: int, vp: int, count: int) -> Iterator[Step]:
    """A group of micro-batches goes through chunk after chunk, so that a chunk's first is back when its last left.

    A group therefore needs ``pp`` micro-batches; where they don't come out even, groups are larger, never smaller,
    and nothing waits (fewer than ``pp`` in all are one group that does).

    Source:
        Narayanan et al. 2021, "Efficient Large-Scale Language Model Training on GPU Clusters", section 2.2.
    """
    groups = microbatch_groups(count, pp=pp)
    forwards = [(chunk, microbatch) for group in groups for chunk in range(vp) for microbatch in group]
    backwards = [(vp - 1 - chunk, microbatch) for chunk, microbatch in forwards]
    warmup = 2 * (pp - rank - 1) + (vp - 1) * len(groups[0])
    yield from _in_turn(forwards, backwards, warmup=warmup)


def microbatch_groups(count: int, *, pp: int) -> list[range]:
    """Cut ``count`` micro-batches into as many groups of at least ``pp`` as there can be, larger ones first."""
    num_groups = max(1, count // pp)
    sizes = [count // num_groups + (index < count % num_groups) for index in range(num_groups)]
    starts = [sum(sizes[:index]) for index in range(num_groups)]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def _in_turn(forwards: list[tuple[int, int]], backwards: list[tuple[int, int]], *, warmup: int) -> Iterator[Step]:
    """Yield ``warmup`` forwards, then forward and backward in turn, then the backwards that are left."""
    warmup = min(warmup, len(forwards))
    for chunk, microbatch in forwards[:warmup]:
        yield "F", chunk, microbatch
    for forward, backward in zip(forwards[warmup:], backwards, strict=False):
        yield "F", *forward
        yield "B", *backward
    for chunk, microbatch in backwards[len(forwards) - warmup :]:
        yield "B", chunk, microbatch


def _zero_bubble(rank: int, *, pp: int, count: int) -> Iterator[Step]:
    """As 1f1b, but weights wait: rank r is r weight gradients behind, and fills the drain with them.

    So every rank holds as many micro-batches as the first one of 1f1b.

    Source:
        Qi et al. 2023, "Zero Bubble Pipeline Parallelism", section 2.2 (schedule H1).
    """
    warmup = min(pp - rank - 1, count)
    weights = iter(range(count))
    for microbatch in range(warmup):
        yield "F", 0, microbatch
    for microbatch in range(count):
        if warmup + microbatch < count:
            yield "F", 0, warmup + microbatch
        yield "I", 0, microbatch
        is_draining = warmup + microbatch >= count
        if microbatch >= rank or is_draining:
            yield "W", 0, next(weights)
    for microbatch in weights:
        yield "W", 0, microbatch


def _zero_bubble_v(rank: int, *, pp: int, count: int) -> Iterator[Step]:
    """Drop what is not there from the schedule of at least 2 ``pp`` micro-batches.

    Taking whole micro-batches out of an order that holds leaves an order that holds.
    """
    for step in _full_zero_bubble_v(rank, pp=pp, count=max(count, 2 * pp)):
        if step[2] < count:
            yield step


def _full_zero_bubble_v(rank: int, *, pp: int, count: int) -> Iterator[Step]:
    """Two chunks a rank, down the ranks and up again, six actions a round; the drain is filled with weights.

    Source:
        Qi et al. 2024, "Pipeline Parallelism with Controllable Memory", section 3 (V-ZB).
    """
    rounds = _Counter()
    for _ in range(2 * (pp - rank) - 1):
        yield rounds.step("F", 0)
    for _ in range(rank):
        yield rounds.step("F", 1)
        yield rounds.step("F", 0)
    for _ in range(pp - rank):
        yield from (rounds.step("F", 1), rounds.step("I", 1), rounds.step("W", 1))
    while rounds.done("F", 1) < count:
        if rounds.done("F", 0) < count:
            yield rounds.step("F", 0)
        yield from (rounds.step("I", 0), rounds.step("W", 0))
        yield from (rounds.step("F", 1), rounds.step("I", 1), rounds.step("W", 1))
    for _ in range(rank):
        yield from (rounds.step("I", 0), rounds.step("I", 1))
    for _ in range(pp - rank):
        yield from (rounds.step("I", 0), rounds.oldest_weight())
    while rounds.done("W", 0) < count or rounds.done("W", 1) < count:
        yield rounds.oldest_weight()


class _Counter:
    """How many micro-batches each kind of action of each chunk has seen."""

    def __init__(self) -> None:
        self._done: dict[tuple[Kind, int], int] = {}

    def done(self, kind: Kind, chunk: int) -> int:
        return self._done.get((kind, chunk), 0)

    def step(self, kind: Kind, chunk: int) -> Step:
        microbatch = self.done(kind, chunk)
        self._done[kind, chunk] = microbatch + 1
        return kind, chunk, microbatch

    def oldest_weight(self) -> Step:
        """The second chunk's weights first: its inputs were done before."""
        return self.step("W", 1 if self.done("W", 1) < self.done("I", 1) else 0)
