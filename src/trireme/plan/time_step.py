"""How long a training step takes: the estimate, its parts, and the interval that holds most real runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trireme.cluster import axis_span, estimate_p2p
from trireme.plan.schedule import stages_of_rank
from trireme.plan.time_data import data_spans, exposed_s
from trireme.plan.time_flops import FlopShares, flop_shares
from trireme.plan.time_optimizer import update_s
from trireme.plan.time_pipeline import Effort, PipelineTime, pipeline_time
from trireme.plan.time_place import Place, place_of
from trireme.plan.time_rates import Rates, family_of
from trireme.plan.time_stage import Stage, Unit, build_stages
from trireme.plan.time_table import Spread, rates_of, spread_of
from trireme.plan.time_work import NO_WORK, Work

if TYPE_CHECKING:
    from trireme.plan.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """A step's predicted time.

    Attributes:
        step_s: The prediction.
        low_s: A tenth of real runs are expected to be faster.
        high_s: A tenth are expected to be slower.
        parts: Seconds of ``step_s`` by what they are spent on, on the rank that works longest.
        bubble_ratio: Share of the pipeline's ranks' time without work.
        mfu: Share of the peak that the model needs.
        hfu: Share of the peak that the hardware does, recomputation counted.
        formula: How both were counted.
        tokens_per_s: Over all ranks.
        is_calibrated: Whether published runs on this generation of accelerators were compared with.
    """

    step_s: float
    low_s: float
    high_s: float
    parts: Mapping[str, float]
    bubble_ratio: float
    mfu: float
    hfu: float
    formula: str
    tokens_per_s: float
    is_calibrated: bool


def estimate_step(workload: Workload, *, rates: Rates | None = None, effort: Effort = "steady") -> StepTime:
    """Estimate the time of one training step.

    ``effort`` says how much of the pipeline's schedule is played; a search of thousands asks for the ``formula``
    first and plays what is left.
    """
    used = rates or rates_of(workload)
    frame = _frame(workload, used, effort=effort)
    parts = _parts(workload, frame, rates=used)
    spread = spread_of(workload)
    shares = flop_shares(workload, frame.place, step_s=frame.step_s)
    return _step_time(workload, frame, parts=parts, spread=spread, shares=shares)


def step_seconds(workload: Workload, *, rates: Rates, effort: Effort = "steady") -> float:
    """Give the seconds alone; what a fit asks thousands of times."""
    return _frame(workload, rates, effort=effort).step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """A step as it was put together."""

    step_s: float
    place: Place
    pipeline: PipelineTime
    last: _RankEnd
    waited_s: float


def _frame(workload: Workload, rates: Rates, *, effort: Effort) -> _Frame:
    layout, cluster = workload.layout, workload.cluster
    place = place_of(workload, workload.model.load(workload.model.stacks[-1], workload.microbatch))
    spans = data_spans(layout, cluster=cluster, expert_tp=place.expert_tp)
    stages = build_stages(workload, rates=rates, spans=spans)
    sends_s = send_s(workload, place) * rates.pipeline
    pipeline = pipeline_time(
        layout.schedule,
        pp=layout.pp,
        vp=layout.vp,
        num_microbatches=layout.num_microbatches,
        costs=[stage.cost for stage in stages],
        sends_s=sends_s,
        hides_sends=workload.framework.overlaps_pipeline,
        effort=effort,
    )
    ends = [
        _rank_end(rank, stages=stages, pipeline=pipeline, workload=workload, rates=rates) for rank in range(layout.pp)
    ]
    last = max(ends, key=lambda end: end.total_s)
    straggle = 1.0 + rates.straggle * math.log2(max(1, cluster.num_ranks / 8))
    worked_s = pipeline.makespan_s + last.data_s + last.update_s
    step_s = worked_s * straggle + rates.step_s
    waited_s = worked_s * (straggle - 1.0)
    return _Frame(step_s=step_s, place=place, pipeline=pipeline, last=last, waited_s=waited_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankEnd:
    """What a rank still does after the pipeline; ``data_s`` is beyond the slack it had."""

    rank: int
    stages: list[Stage]
    data_s: float
    update_s: float

    @property
    def total_s(self) -> float:
        return self.data_s + self.update_s


def _rank_end(rank: int, *, stages: list[Stage], pipeline: PipelineTime, workload: Workload, rates: Rates) -> _RankEnd:
    layout, framework = workload.layout, workload.framework
    own = [stages[stage] for stage in stages_of_rank(rank, name=layout.schedule, pp=layout.pp, vp=layout.vp)]
    buckets = sum(stage.num_units for stage in own)
    reduce_s = sum(stage.reduce_s for stage in own)
    gather_s = sum(stage.gather_s for stage in own)
    if layout.zero >= 2 and layout.pp == 1:  # sent with every micro-batch, in the stages' own time
        reduce_s = reduce_s / max(1, buckets)
    if layout.zero == 3 and layout.pp == 1:
        gather_s = gather_s / max(1, buckets)
    if layout.zero == 0:
        gather_s = 0.0
    if framework.overlaps_data:
        backward_s = sum(stage.backward_s for stage in own)
        forward_s = sum(stage.forward_s for stage in own)
        shown_s = exposed_s(reduce_s, window_s=backward_s, buckets=buckets)
        shown_s += exposed_s(gather_s, window_s=forward_s, buckets=buckets)
        shown_s += rates.data_left * (min(reduce_s, backward_s) + min(gather_s, forward_s))
    else:
        shown_s = reduce_s + gather_s
    data_s = max(0.0, shown_s - pipeline.slack_s[rank])
    return _RankEnd(rank=rank, stages=own, data_s=data_s, update_s=update_s(own, workload=workload, rates=rates))


def send_s(workload: Workload, place: Place) -> float:
    """One activation across a cut; with sp every tensor-parallel rank sends its part."""
    layout = workload.layout
    if layout.pp == 1:
        return 0.0
    width = workload.model.stacks[-1].width
    sent = place.tokens * width * place.wide_bytes / (layout.tp if layout.sp else 1)
    stride = layout.world_size // layout.pp
    return estimate_p2p(float(sent), span=axis_span(degree=layout.pp, stride=stride, cluster=workload.cluster)).time_s


_TENSOR, _CONTEXT, _EXPERT = "tensor_parallel", "context_parallel", "expert_parallel"


def _parts(workload: Workload, frame: _Frame, *, rates: Rates) -> dict[str, float]:
    """Seconds by name; what a rank's own work doesn't explain of the pipeline is its bubble and hidden traffic."""
    last, pipeline = frame.last, frame.pipeline
    total, repeated = NO_WORK, NO_WORK
    for stage in last.stages:
        for unit in stage.units:
            total = total.plus(_all_passes(unit, adapters_only=workload.adapters_only), times=unit.times)
            repeated = repeated.plus(_repeated(unit, workload=workload), times=unit.times)
    count = workload.layout.num_microbatches
    is_fused, framework = workload.kernels in ("fused", "unflashed"), workload.framework
    tensor = rates.tensor_hidden if framework.overlaps_tensor else rates.tensor
    parts = {
        "products": count * (rates.products * total.products_s + rates.narrow * total.narrow_s),
        "short_products": count * rates.ramp * total.ramps_s,
        "attention": count * rates.attention_of(framework) * total.attention_s,
        "elementwise": count * (rates.fused_traffic if is_fused else rates.eager_traffic) * total.traffic_s,
        "recompute": count * rates.compute_s(repeated, is_fused=is_fused, framework=framework),
        _TENSOR: count * tensor * (total.tensor_s + repeated.tensor_s),
        _CONTEXT: count * rates.tensor_hidden * (total.context_s + repeated.context_s),
        _EXPERT: count * rates.expert * (total.expert_s + repeated.expert_s),
    }
    known_s = sum(parts.values())
    busy_s = pipeline.busy_s[last.rank]
    stalled_s = count * sum(stage.stalled_s for stage in last.stages)
    parts["offload"] = stalled_s
    parts["launches_and_shards"] = max(0.0, busy_s - known_s - stalled_s)
    parts["bubble"] = max(0.0, pipeline.makespan_s - busy_s)
    parts["data_parallel"] = last.data_s
    parts["optimizer"] = last.update_s
    parts["stragglers"] = frame.waited_s
    parts["host"] = rates.step_s
    excess = sum(parts.values()) - frame.step_s
    if excess > 0:  # expert exchanges that the framework hides
        parts[_EXPERT] = max(0.0, parts[_EXPERT] - excess)
    return parts


def _all_passes(unit: Unit, *, adapters_only: bool) -> Work:
    passes = unit.work.passes
    total = passes.forward.plus(passes.input_grad)
    return total if adapters_only else total.plus(passes.weight_grad)


def _repeated(unit: Unit, *, workload: Workload) -> Work:
    if unit.recompute == "none":
        return NO_WORK
    if unit.recompute == "full":
        return unit.work.passes.forward
    if workload.framework.repeats == "half":
        return NO_WORK.plus(unit.work.passes.forward, times=0.5)
    if workload.framework.repeats == "between":
        return unit.work.passes.between_products()
    return unit.work.passes.repeated


def _step_time(
    workload: Workload, frame: _Frame, *, parts: Mapping[str, float], spread: Spread, shares: FlopShares
) -> StepTime:
    return StepTime(
        step_s=frame.step_s,
        low_s=frame.step_s * spread.low,
        high_s=frame.step_s * spread.high,
        parts=parts,
        bubble_ratio=frame.pipeline.bubble_ratio,
        mfu=shares.mfu,
        hfu=shares.hfu,
        formula=shares.formula,
        tokens_per_s=workload.step_tokens / frame.step_s,
        is_calibrated=family_of(workload.cluster.accelerator) != "other",
    )
