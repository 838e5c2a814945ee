"""The pipeline's part of a step, action by action: what a picture of it shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trireme.plan.schedule import build_schedule
from trireme.plan.simulate import Timeline, simulate
from trireme.plan.time_data import data_spans
from trireme.plan.time_place import place_of
from trireme.plan.time_rates import Rates
from trireme.plan.time_stage import build_stages
from trireme.plan.time_step import send_s
from trireme.plan.time_table import rates_of

if TYPE_CHECKING:
    from trireme.plan.workload import Workload


def step_timeline(workload: Workload, *, rates: Rates | None = None) -> Timeline:
    """Play every action of a step's schedule with the times that ``estimate_step`` gives its stages.

    Without the optimizer's update, and without data-parallel traffic that the pipeline doesn't hide.
    """
    used = rates or rates_of(workload)
    layout = workload.layout
    place = place_of(workload, workload.model.load(workload.model.stacks[-1], workload.microbatch))
    spans = data_spans(layout, cluster=workload.cluster, expert_tp=place.expert_tp)
    stages = build_stages(workload, rates=used, spans=spans)
    schedule = build_schedule(layout.schedule, pp=layout.pp, vp=layout.vp, num_microbatches=layout.num_microbatches)
    return simulate(
        schedule,
        costs=[stage.cost for stage in stages],
        p2p_s=send_s(workload, place) * used.pipeline,
        overlap=workload.framework.overlaps_pipeline,
    )
