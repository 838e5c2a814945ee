"""Place: where one rank stands and what it works with, as far as a layer's time depends on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from trireme.cluster import Cluster, DeviceSpec, Span, axis_span

if TYPE_CHECKING:
    from trireme.graph import Load
    from trireme.plan.layout import Layout
    from trireme.plan.workload import Workload

_NARROW = {"fp8": "float8", "fp4": "float4"}


@dataclass(frozen=True, kw_only=True)
class Place:
    """One rank of a layout at work on one micro-batch.

    ``load`` is the micro-batch before cp cuts its sequence. ``wide`` is the number format of products that are never
    narrowed (the head), ``narrow`` that of the layers' products; both as the accelerator's catalogue names them.
    """

    cluster: Cluster
    load: Load
    tp: int
    cp: int
    ep: int
    expert_tp: int
    sp: bool
    ring: bool
    eager_attention: bool
    fused: bool
    wide: str
    narrow: str
    wide_bytes: int
    gradient_bytes: int
    layout: Layout

    @property
    def device(self) -> DeviceSpec:
        """What computes."""
        return self.cluster.accelerator

    @property
    def tokens(self) -> int:
        """Tokens of the micro-batch that this rank's products see."""
        return max(1, self.load.seqs * self.load.seq_len // self.cp)

    @cached_property
    def tensor_span(self) -> Span:
        """Ranks that share a layer."""
        return axis_span(degree=self.tp, stride=1, cluster=self.cluster)

    @cached_property
    def context_span(self) -> Span:
        """Ranks that share a sequence."""
        return axis_span(degree=self.cp, stride=self.tp, cluster=self.cluster)

    @cached_property
    def expert_span(self) -> Span:
        """Ranks that share out the experts; those that cut one expert together stand between them."""
        return axis_span(degree=self.ep, stride=self.expert_tp, cluster=self.cluster)

    @property
    def key(self) -> tuple[object, ...]:
        """What two places must have in common for the same layer to take the same time."""
        load, wide = self.load, (self.wide, self.narrow, self.gradient_bytes)
        parts = (self.tp, self.cp, self.ep, self.expert_tp, self.sp, self.ring, self.eager_attention, self.fused)
        return (id(self.cluster), load.seqs, load.seq_len, load.memory_len, *parts, *wide)


def place_of(workload: Workload, load: Load) -> Place:
    """Give the place of a workload's ranks at work on a micro-batch."""
    layout, framework = workload.layout, workload.framework
    peaks = workload.cluster.accelerator.peak_flops_per_s
    wide = _wide_format(workload.precision, peaks)
    narrow = _NARROW.get(workload.precision, wide)
    is_wide_gradient = framework.float32_gradients and not workload.has_short_weights
    expert_tp = layout.tp if framework.cuts_experts and layout.ep > 1 else 1
    return Place(
        cluster=workload.cluster,
        load=load,
        tp=layout.tp,
        cp=layout.cp,
        ep=layout.ep,
        expert_tp=expert_tp if _fits(layout, expert_tp) else 1,
        sp=layout.sp,
        ring=layout.cp_kind != "ulysses",
        eager_attention=workload.kernels in ("eager", "unflashed"),
        fused=workload.kernels in ("fused", "unflashed"),
        wide=wide,
        narrow=narrow if narrow in peaks else "float8" if "float8" in peaks and narrow == "float4" else wide,
        wide_bytes=4 if workload.precision == "fp32" else 2,
        gradient_bytes=4 if is_wide_gradient or workload.precision == "fp32" else 2,
        layout=layout,
    )


def _fits(layout: Layout, expert_tp: int) -> bool:
    """Whether experts can be cut and spread at once: both together stay inside a stage's ranks."""
    inside = layout.dp_replicate * layout.dp_shard * layout.cp * layout.tp
    return inside % (layout.ep * expert_tp) == 0


def _wide_format(precision: str, peaks: object) -> str:
    known = dict(peaks)  # type: ignore[call-overload]
    asked = ("tfloat32", "float32") if precision == "fp32" else ("bfloat16", "float16", "tfloat32", "float32")
    if precision in ("fp16", "fp16_master"):
        asked = ("float16", *asked)
    return next((name for name in asked if name in known), next(iter(known)))
