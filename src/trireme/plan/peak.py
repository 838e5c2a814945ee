"""When a rank holds most: memory along the very action list that runs, and the peak named with its event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from trireme.plan.layout import Layout
from trireme.plan.rank_param import stages_of_pipeline_rank
from trireme.plan.schedule import Action, Schedule, ScheduleName, build_schedule, microbatch_groups
from trireme.plan.stage_memory import StageMemory, stage_memory
from trireme.plan.state import compute_bytes
from trireme.plan.workload import Workload

if TYPE_CHECKING:
    from trireme.plan.candidate import Shape

Moment = Literal["forward", "loss", "backward", "update"]

CONTEXT_BYTES = 600 * 2**20
"""What the driver's context and loaded kernels take on a device before anything is allocated.

Source: about 0.5 GiB on A100 and H100 with torch 2; 1.3 GB with communication (bigscience, chronicles of tr8).
"""

COMMUNICATOR_BYTES = 400 * 2**20
"""Buffers of one group of ranks, rings, trees and network proxies included.

Source: what devices show beyond the allocator on several nodes (benchmarks/planner_accuracy.md); rings alone are 4 MiB
times 16 to 24 channels, there and back (https://github.com/NVIDIA/nccl/issues/1197).
"""

WORKSPACE_BYTES = 64 * 2**20
"""Work space of matrix products; the allocator counts it (torch: CUBLAS_WORKSPACE_CONFIG, 32 MiB a stream on Hopper).
"""

FRAGMENTATION_RATIO = 0.1
"""What a caching allocator reserves beyond what is allocated at the peak, over that.

Source: device figures of published runs beside their predicted allocation (benchmarks/planner_accuracy.md).
"""


class MemoryEvent(NamedTuple):
    """A moment of the step and what is allocated then; stage and micro-batch are None at the update."""

    moment: Moment
    stage: int | None
    microbatch: int | None
    allocated_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One pipeline rank, first of its tensor-parallel group.

    Attributes:
        pp_rank: Its place in the pipeline.
        stages: Stages that it holds.
        parts: Bytes by part at the peak.
        peak: When that is.
        events: The whole step.
        reserved_bytes: What the allocator keeps beyond (fragmentation).
        context_bytes: What lies outside of the allocator: the driver's context, buffers of communicators.
        host_bytes: Offloaded to host memory.
    """

    pp_rank: int
    stages: tuple[int, ...]
    parts: Mapping[str, int]
    peak: MemoryEvent
    events: tuple[MemoryEvent, ...]
    reserved_bytes: int
    context_bytes: int
    host_bytes: int

    @property
    def allocated_bytes(self) -> int:
        """What the allocator counts at the peak (``max_memory_allocated``)."""
        return self.peak.allocated_bytes

    @property
    def device_bytes(self) -> int:
        """What the device shows (``nvidia-smi``)."""
        return self.allocated_bytes + self.reserved_bytes + self.context_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTimeline:
    """Memory of every kind of rank along a step; ranks of one stage differ by a tensor's uneven share at most."""

    ranks: tuple[RankMemory, ...]
    capacity_bytes: int

    @property
    def worst(self) -> RankMemory:
        """The rank whose device is fullest."""
        return max(self.ranks, key=lambda rank: rank.device_bytes)

    @property
    def allocated_bytes(self) -> int:
        """Most that the allocator counts on any rank."""
        return max(rank.allocated_bytes for rank in self.ranks)

    @property
    def device_bytes(self) -> int:
        """Most that any device shows."""
        return self.worst.device_bytes

    @property
    def fits(self) -> bool:
        """Whether every rank's need is within its device."""
        return self.device_bytes <= self.capacity_bytes


def estimate_peak(workload: Workload, *, with_events: bool = True) -> MemoryTimeline:
    """Estimate memory, rank by rank of the pipeline, along the schedule's own action list.

    Without ``with_events`` each rank's events are its peak alone, and a long schedule is walked until it repeats.
    """
    layout = workload.layout
    count = layout.num_microbatches if with_events else peak_microbatches(layout)
    schedule = _schedule(layout.schedule, layout.pp, count, layout.vp)
    stages = {stage: stage_memory(workload, stage) for stage in range(layout.num_stages)}
    ranks = tuple(_rank_memory(workload, schedule, rank, stages, with_events=with_events) for rank in range(layout.pp))
    return MemoryTimeline(ranks=ranks, capacity_bytes=workload.cluster.accelerator.memory_bytes)


def peak_microbatches(layout: Layout | Shape) -> int:
    """Micro-batches after which no rank ever holds more than before."""
    count, pp = layout.num_microbatches, layout.pp
    if layout.schedule == "gpipe":
        return count
    group = len(microbatch_groups(count, pp=pp)[0]) if layout.schedule == "interleaved" else pp
    return min(count, {"zbv": 4}.get(layout.schedule, 2) * group + (0 if layout.schedule == "interleaved" else 1))


@lru_cache(maxsize=128)
def _schedule(name: ScheduleName, pp: int, num_microbatches: int, vp: int) -> Schedule:
    return build_schedule(name, pp=pp, num_microbatches=num_microbatches, vp=vp)


def _rank_memory(
    workload: Workload, schedule: Schedule, rank: int, stages: Mapping[int, StageMemory], *, with_events: bool
) -> RankMemory:
    held = stages_of_pipeline_rank(workload, rank)
    walk = _Walk(workload, {stage: stages[stage] for stage in held})
    moments = [*walk.play(schedule.ranks[rank]), walk.update()]
    peak = max(moments, key=lambda moment: moment.coming)
    event = walk.event(peak)
    return RankMemory(
        pp_rank=rank,
        stages=held,
        parts=walk.parts(peak),
        peak=event,
        events=tuple(walk.event(moment) for moment in moments) if with_events else (event,),
        reserved_bytes=round(FRAGMENTATION_RATIO * (walk.fixed_bytes + peak.coming)),
        context_bytes=context_bytes(workload.layout),
        host_bytes=walk.host_bytes,
    )


def context_bytes(layout: Layout | Shape) -> int:
    """What a device holds outside of the allocator."""
    if layout.dp * layout.cp * layout.tp * layout.pp == 1:
        return CONTEXT_BYTES
    groups = sum(degree > 1 for degree in (layout.pp, layout.dp * layout.cp, layout.tp, layout.cp, layout.ep))
    return CONTEXT_BYTES + COMMUNICATOR_BYTES * (1 + groups)


class _Moment(NamedTuple):
    """Bytes that come and go, at one moment."""

    moment: Moment
    action: Action | None
    gradients: int
    activations: int
    casts: int
    logits: int
    shared: int
    work: int

    @property
    def coming(self) -> int:
        return self.gradients + self.activations + self.casts + self.logits + self.shared + self.work


class _Walk:
    """A rank along its actions; sums are carried along, for there may be a hundred thousand."""

    def __init__(self, workload: Workload, stages: Mapping[int, StageMemory]) -> None:
        self.stages = stages
        self.keeps_gradients = workload.framework.keeps_gradients or workload.layout.zero >= 2
        shared: dict[str, int] = {}
        for stage in stages.values():
            shared |= stage.shared
        self.shared = sum(shared.values())
        self.all_gradients = sum(stage.state.gradients for stage in stages.values())
        self.gradients = self.all_gradients if self.keeps_gradients else 0
        self.activations = self.casts = self.logits = self.host_bytes = self.offloaded = 0
        self.fixed = {
            "parameters": sum(stage.state.parameters for stage in stages.values()),
            "optimizer": sum(stage.state.optimizer for stage in stages.values()),
            "weight_casts": sum(stage.state.casts for stage in stages.values()),
            "buffers": WORKSPACE_BYTES + _transfer_bytes(workload) + workload.framework.buffer_bytes,
        }
        self.fixed_bytes = sum(self.fixed.values())
        self.update_work = sum(stage.state.gradient_copies for stage in stages.values())

    def play(self, actions: tuple[Action, ...]) -> Iterator[_Moment]:
        """Yield every moment at which memory may peak."""
        is_split = any(action.kind == "W" for action in actions)
        fresh = set() if self.keeps_gradients else set(self.stages)  # no gradient of theirs is there yet
        for action in actions:
            stage = self.stages[action.stage]
            if action.kind == "F":
                self._keep(stage, 1)
                self.logits += stage.loss
                yield self._moment("forward", action, stage.forward_work + stage.gathered)
                continue
            if action.kind != "W":
                if stage.loss:
                    yield self._moment("loss", action, stage.loss_work + stage.gathered)
                self.logits -= stage.loss  # gone before the layers' turn comes
                yield self._moment("backward", action, stage.backward_work + stage.gathered + stage.gradient_window)
            if action.kind == "W" or not is_split:
                self._keep(stage, -1)
                if action.stage in fresh:
                    fresh.discard(action.stage)
                    self.gradients += stage.state.gradients
                yield self._moment("backward", action, stage.gradient_window)

    def update(self) -> _Moment:
        """Everything that was kept for backward is gone, all gradients are there."""
        return _Moment("update", None, self.all_gradients, 0, 0, 0, 0, self.update_work)

    def event(self, moment: _Moment) -> MemoryEvent:
        action = moment.action
        size = self.fixed_bytes + moment.coming
        if action is None:
            return MemoryEvent(moment.moment, None, None, size)
        return MemoryEvent(moment.moment, action.stage, action.microbatch, size)

    def parts(self, moment: _Moment) -> dict[str, int]:
        """Bytes by part; names as in the catalogue's ``plan.part_...``."""
        return {
            **self.fixed,
            "weight_casts": self.fixed["weight_casts"] + moment.casts,
            "gradients": moment.gradients,
            "activations": moment.activations,
            "logits": moment.logits,
            "shared": moment.shared,
            "work": moment.work,
        }

    def _moment(self, moment: Moment, action: Action, work: int) -> _Moment:
        return _Moment(moment, action, self.gradients, self.activations, self.casts, self.logits, self.shared, work)

    def _keep(self, stage: StageMemory, count: int) -> None:
        self.activations += count * stage.activations
        self.casts += count * stage.state.casts_each
        self.offloaded += count * stage.offloaded
        self.host_bytes = max(self.host_bytes, self.offloaded)


def _transfer_bytes(workload: Workload) -> int:
    """Two tensors on their way in and two out, where there is a pipeline."""
    layout = workload.layout
    if layout.pp == 1:
        return 0
    stack = workload.model.stacks[-1]
    border = stack.border_bytes(
        workload.model.load(stack, workload.microbatch), dtype_bytes=compute_bytes(workload.precision)
    )
    return 4 * border // (layout.cp * (layout.tp if layout.sp else 1))
