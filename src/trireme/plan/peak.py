"""When a rank holds most: memory along the very action list that runs, and the peak named with its event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from trireme.plan.rank_param import stages_of_pipeline_rank
from trireme.plan.schedule import Action, Schedule, ScheduleName, build_schedule
from trireme.plan.stage_memory import StageMemory, stage_memory
from trireme.plan.state import compute_bytes
from trireme.plan.workload import Workload

Moment = Literal["forward", "loss", "backward", "update"]

CONTEXT_BYTES = 600 * 2**20
"""What the driver's context and loaded kernels take on a device before anything is allocated.

Source: about 0.5 GiB on A100 and H100 with torch 2; 1.3 GB with communication (bigscience, chronicles of tr8).
"""

COMMUNICATOR_BYTES = 180 * 2**20
"""Buffers of one group of ranks: channels times (send and receive) times 4 MiB.

Source: NCCL's NCCL_BUFFSIZE (4 MiB) and 16 to 24 channels a communicator; https://github.com/NVIDIA/nccl/issues/1197.
"""

WORKSPACE_BYTES = 64 * 2**20
"""Work space of matrix products; the allocator counts it (torch: CUBLAS_WORKSPACE_CONFIG, 32 MiB a stream on Hopper).
"""

FRAGMENTATION_RATIO = 0.06
"""What a caching allocator reserves beyond what is allocated at the peak, over what comes and goes in a step.

Source: benchmarks/planner.md.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEvent:
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


def estimate_peak(workload: Workload) -> MemoryTimeline:
    """Estimate memory, rank by rank of the pipeline, along the schedule's own action list."""
    layout = workload.layout
    schedule = _schedule(layout.schedule, layout.pp, layout.num_microbatches, layout.vp)
    stages = {stage: stage_memory(workload, stage) for stage in range(layout.num_stages)}
    ranks = tuple(_rank_memory(workload, schedule, rank, stages) for rank in range(layout.pp))
    return MemoryTimeline(ranks=ranks, capacity_bytes=workload.cluster.accelerator.memory_bytes)


@lru_cache(maxsize=32)
def _schedule(name: ScheduleName, pp: int, num_microbatches: int, vp: int) -> Schedule:
    return build_schedule(name, pp=pp, num_microbatches=num_microbatches, vp=vp)


def _rank_memory(workload: Workload, schedule: Schedule, rank: int, stages: Mapping[int, StageMemory]) -> RankMemory:
    held = stages_of_pipeline_rank(workload, rank)
    walk = _Walk(workload, {stage: stages[stage] for stage in held})
    moments = [*walk.play(schedule.ranks[rank]), walk.update()]
    event, parts = max(moments, key=lambda moment: moment[0].allocated_bytes)
    coming_and_going = event.allocated_bytes - walk.fixed_bytes
    return RankMemory(
        pp_rank=rank,
        stages=held,
        parts=parts,
        peak=event,
        events=tuple(moment[0] for moment in moments),
        reserved_bytes=round(FRAGMENTATION_RATIO * coming_and_going),
        context_bytes=context_bytes(workload),
        host_bytes=walk.host_bytes,
    )


def context_bytes(workload: Workload) -> int:
    """What a device holds outside of the allocator."""
    layout = workload.layout
    if workload.layout.world_size == 1:
        return CONTEXT_BYTES
    groups = sum(degree > 1 for degree in (layout.pp, layout.dp * layout.cp, layout.tp, layout.cp, layout.ep))
    return CONTEXT_BYTES + COMMUNICATOR_BYTES * (1 + groups)


class _Walk:
    """A rank along its actions."""

    def __init__(self, workload: Workload, stages: Mapping[int, StageMemory]) -> None:
        self.workload, self.stages = workload, stages
        self.keeps_gradients = workload.framework.keeps_gradients or workload.layout.zero >= 2
        self.in_flight = dict.fromkeys(stages, 0)
        self.losses = dict.fromkeys(stages, 0)
        self.with_gradients: set[int] = set()
        self.host_bytes = 0
        shared: dict[str, int] = {}
        for stage in stages.values():
            shared |= stage.shared
        self.shared_bytes = sum(shared.values())
        self.fixed = {
            "parameters": sum(stage.state.parameters for stage in stages.values()),
            "optimizer": sum(stage.state.optimizer for stage in stages.values()),
            "weight_casts": sum(stage.state.casts for stage in stages.values()),
            "buffers": WORKSPACE_BYTES + _transfer_bytes(workload),
        }
        self.all_gradients = sum(stage.state.gradients for stage in stages.values())
        self.fixed_bytes = sum(self.fixed.values())

    def play(self, actions: tuple[Action, ...]) -> Iterator[tuple[MemoryEvent, dict[str, int]]]:
        """Yield every moment at which memory may peak, with the parts."""
        split = {(action.stage, action.microbatch) for action in actions if action.kind == "W"}
        for action in actions:
            stage = self.stages[action.stage]
            if action.kind == "F":
                self.in_flight[action.stage] += 1
                self.losses[action.stage] += 1
                self.host_bytes = max(self.host_bytes, self._offloaded())
                yield self._moment("forward", action, work=stage.forward_work + stage.gathered)
                continue
            work = stage.backward_work + stage.gathered + stage.gradient_window
            if action.kind in ("B", "I"):
                if stage.loss:
                    yield self._moment("loss", action, work=stage.loss_work + stage.gathered)
                self.losses[action.stage] -= 1  # logits are gone before the layers' turn comes
                yield self._moment("backward", action, work=work)
            if action.kind == "W" or (action.stage, action.microbatch) not in split:
                self.in_flight[action.stage] -= 1
                self.with_gradients.add(action.stage)
                yield self._moment("backward", action, work=stage.gradient_window)

    def update(self) -> tuple[MemoryEvent, dict[str, int]]:
        """Everything that was kept for backward is gone, all gradients are there."""
        self.with_gradients = set(self.stages)
        parts = self._parts(work=0) | {"shared": 0}  # tables live as long as a graph does
        event = MemoryEvent(moment="update", stage=None, microbatch=None, allocated_bytes=sum(parts.values()))
        return event, parts

    def _moment(self, moment: Moment, action: Action, *, work: int) -> tuple[MemoryEvent, dict[str, int]]:
        parts = self._parts(work=work)
        event = MemoryEvent(
            moment=moment, stage=action.stage, microbatch=action.microbatch, allocated_bytes=sum(parts.values())
        )
        return event, parts

    def _parts(self, *, work: int) -> dict[str, int]:
        gradients = (
            self.all_gradients
            if self.keeps_gradients
            else sum(self.stages[stage].state.gradients for stage in self.with_gradients)
        )
        return {
            **self.fixed,
            "gradients": gradients,
            "activations": sum(count * self.stages[stage].activations for stage, count in self.in_flight.items()),
            "logits": sum(count * self.stages[stage].loss for stage, count in self.losses.items()),
            "shared": self.shared_bytes,
            "work": work,
        }

    def _offloaded(self) -> int:
        return sum(count * self.stages[stage].offloaded for stage, count in self.in_flight.items())


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
