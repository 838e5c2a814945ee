"""What a layout takes at least, in time and bytes, without estimating it: the reason to look no closer."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from trireme.plan.candidate import Shape
from trireme.plan.layer_cost import LayerCosts, all_repeated_seconds, layer_costs
from trireme.plan.layout import CpKind, Layout
from trireme.plan.peak import context_bytes
from trireme.plan.problem import Problem
from trireme.plan.schedule import ScheduleName, build_schedule
from trireme.plan.schedule_check import count_in_flight, in_flight_bound
from trireme.plan.stage_memory import stage_memory
from trireme.plan.time_rates import Rates
from trireme.plan.time_table import rates_of

_UNEVEN_RATIO = 0.97
"""Stages that differ may wait less for each other than equal ones, of which the formula is true."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No estimate of the layout is below ``step_s``; the mean over its ranks needs ``state_bytes``, and with all that
    can be recomputed recomputed ``least_bytes``, so some rank needs no less."""

    step_s: float
    state_bytes: int
    least_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """One micro-batch through all layers: bytes kept without and with full recomputation, and the seconds of that."""

    plain: int
    full: int
    repeated_s: float


class Bounds:
    """Bounds of a problem's layouts; what many of them share is counted once."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.capacity = problem.cluster.accelerator.memory_bytes
        self.rates: Rates = rates_of(problem.workload(Layout(dp_replicate=problem.cluster.num_ranks)))
        self._straggle = 1.0 + self.rates.straggle * math.log2(max(1.0, problem.cluster.num_ranks / 8))
        self._costs_at = lru_cache(maxsize=None)(self._costs)
        self._kept_at = lru_cache(maxsize=None)(self._kept)
        self._state_at = lru_cache(maxsize=None)(self._state_bytes)

    def state_bytes(self, layout: Shape) -> int:
        """Give what parameters, gradients and optimizer take of a mean rank, and what the device itself does."""
        held = self._state_at(layout.tp, layout.cp, layout.ep, layout.zero, layout.dp_replicate, layout.dp_shard)
        return held // layout.pp + context_bytes(layout)

    def of(self, layout: Shape, *, state: int) -> Bound:
        """Give the bound of a layout whose ``state_bytes`` are known."""
        kept = self._kept_at(_place(self.problem, layout))
        in_flight = _mean_in_flight(layout.schedule, layout.pp, layout.num_microbatches, layout.vp)
        share = in_flight.mean / layout.num_stages
        may_repeat = layout.recompute in ("auto", "full") and layout.schedule not in ("zb", "zbv")
        least = state + int(share * (kept.full if may_repeat else kept.plain))
        over = state + share * kept.plain - self.capacity
        again_s = 0.0
        if layout.recompute == "full":
            again_s = kept.repeated_s
        elif over > 0 and may_repeat and kept.plain > kept.full:
            # The rank that holds most micro-batches frees most bytes for a second, so no rank needs less time.
            freed = in_flight.most / layout.num_stages * (kept.plain - kept.full)
            again_s = min(1.0, over / freed) * kept.repeated_s
        return Bound(step_s=self._step_s(layout, again_s=again_s), state_bytes=state, least_bytes=least)

    def costs_of(self, layout: Layout | Shape) -> LayerCosts:
        """Give the seconds of every layer at the layout's place."""
        return self._costs_at(_place(self.problem, layout))

    def _costs(self, place: _Place) -> LayerCosts:
        problem, layout = self._one_microbatch(place)
        return layer_costs(problem.workload(layout), rates=self.rates)

    def _kept(self, place: _Place) -> _Kept:
        problem, layout = self._one_microbatch(place)
        plain = problem.workload(layout)
        full = problem.workload(replace(layout, recompute="full"))
        return _Kept(
            plain=stage_memory(plain, 0).activations,
            full=stage_memory(full, 0).activations,
            repeated_s=all_repeated_seconds(full, "full", rates=self.rates),
        )

    def _one_microbatch(self, place: _Place) -> tuple[Problem, Layout]:
        layout = Layout(
            tp=place.tp,
            cp=place.cp,
            ep=place.ep,
            sp=place.sp,
            cp_kind=place.cp_kind,
            dp_shard=place.inside,
            microbatches_per_step=1,
        )
        return replace(self.problem, global_batch_seqs=place.seqs * place.inside), layout

    def _step_s(self, layout: Shape, *, again_s: float) -> float:
        """All layers' work shared out as evenly as whole layers can be, and how long the pipeline takes to fill.

        Source: m + p - 1 stages' worth of time under 1f1b (Narayanan et al. 2021, section 2.2), less filling with
        several stages a rank. Under a zero-bubble schedule the last rank still waits for the first forward.
        """
        costs, count, pp = self.costs_of(layout), layout.num_microbatches, layout.pp
        total_s = costs.total_s + again_s
        fullest_s = max(total_s, pp * -(-len(costs.layers) // pp) * min(costs.layers)) / pp
        waited_s = costs.forward_s if layout.schedule in ("zb", "zbv") else total_s
        even_s = (count * total_s + (pp - 1) / layout.vp * waited_s) / pp
        busy_s = max(count * fullest_s, even_s if pp == 1 else _UNEVEN_RATIO * even_s)
        return busy_s * self._straggle + self.rates.step_s

    def _state_bytes(self, tp: int, cp: int, ep: int, zero: int, dp_replicate: int, dp_shard: int) -> int:
        """State of the whole model on one rank, as if there were no pipeline."""
        layout = Layout(tp=tp, cp=cp, ep=ep, zero=zero, dp_replicate=dp_replicate, dp_shard=dp_shard)
        return stage_memory(self.problem.workload(layout), 0).state.total_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _InFlight:
    """Stage activations held at once: the mean over ranks of their most, and the most of all."""

    mean: float
    most: int


@lru_cache(maxsize=2048)
def _mean_in_flight(name: ScheduleName, pp: int, count: int, vp: int) -> _InFlight:
    if name == "zbv" and count < 2 * pp:  # where the formula gives an upper bound alone
        schedule = build_schedule(name, pp=pp, num_microbatches=count, vp=vp)
        counts = [held.count for held in count_in_flight(schedule)]
    else:
        counts = [in_flight_bound(name, pp=pp, vp=vp, num_microbatches=count, rank=rank) for rank in range(pp)]
    return _InFlight(mean=sum(counts) / pp, most=max(counts))


def _least_inside(layout: Layout | Shape, *, expert_tp: int) -> int:
    """Give the least data-parallel degree over which experts are dealt out as they are here.

    A layer's work asks no more of the degree than that, so places that differ in it alone are one.
    """
    if layout.ep == 1:
        return 1
    ranks, together = layout.cp * layout.tp, layout.ep * expert_tp
    is_cut = layout.dp * ranks % together == 0
    need = together if is_cut else layout.ep
    least = need // math.gcd(need, ranks)
    return least if is_cut or least * ranks % together else layout.dp


class _Place(NamedTuple):
    """All that a layer's work depends on; with experts, also how many ranks they are spread over."""

    tp: int
    cp: int
    ep: int
    sp: bool
    cp_kind: CpKind
    seqs: int
    inside: int


def _place(problem: Problem, layout: Layout | Shape) -> _Place:
    seqs = -(-problem.global_batch_seqs // layout.dp // layout.num_microbatches)
    inside = _least_inside(layout, expert_tp=layout.tp if problem.framework.cuts_experts else 1)
    return _Place(layout.tp, layout.cp, layout.ep, layout.sp, layout.cp_kind, seqs, inside)
