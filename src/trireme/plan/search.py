"""The best layouts of a problem: everything is looked at, and as little as possible estimated."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

from trireme.errors import Infeasible
from trireme.plan.bound import Bounds
from trireme.plan.candidate import Left, Shape, check_wish, frames, shardings, variants
from trireme.plan.infeasible import largest_term
from trireme.plan.layer_choice import fit_layers
from trireme.plan.layer_cost import balanced_cuts
from trireme.plan.layout import Layout
from trireme.plan.peak import MemoryTimeline, estimate_peak
from trireme.plan.problem import Problem
from trireme.plan.time_step import StepTime, estimate_step
from trireme.plan.workload import Workload
from trireme.units import format_bytes, format_duration
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A layout that fits, with everything chosen and what it is expected to show."""

    workload: Workload
    time: StepTime
    memory: MemoryTimeline

    @property
    def score_s(self) -> float:
        """What layouts are ranked by."""
        return _score(self.workload.layout, self.time)


COMPLEXITY_RATIO = 0.005
"""How much faster a layout must be for each technique more: differences of a percent are below any estimate's error,
and the plainer one has less that can go wrong."""


def _score(layout: Layout, time: StepTime) -> float:
    return time.step_s * (1 + COMPLEXITY_RATIO * num_techniques(layout))


def num_techniques(layout: Layout | Shape) -> int:
    """Count what a layout has beside data parallelism."""
    axes = sum(degree > 1 for degree in (layout.pp, layout.vp, layout.tp, layout.cp, layout.ep))
    return axes + (layout.schedule in ("zb", "zbv"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A class of layouts that was left out: how many, one of them, and why, with the amount."""

    rule: str
    count: int
    example: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """How many layouts were looked at, and how far."""

    frames: int = 0
    layouts: int = 0
    too_large: int = 0
    slower: int = 0
    estimated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best layouts, best first, and what became of all others."""

    plans: tuple[Found, ...]
    rejected: tuple[Rejection, ...]
    counted: Counted

    @property
    def best(self) -> Found:
        """The first."""
        return self.plans[0]


def search(problem: Problem, *, top: int = 5) -> SearchResult:
    """Find the fastest layouts that fit.

    Layouts are taken in the order of a lower bound of their time, so that once the bound is above the last of the
    ``top`` nothing after it can be better.

    Raises:
        LayoutError: What is fixed contradicts the ranks, the batch or the model.
        Infeasible: No layout fits; the message names the nearest one and the term that bursts.
    """
    check_wish(problem)
    return _Search(problem, top=top).run()


class _Waiting(NamedTuple):
    score_s: float
    number: int
    shape: Shape
    bound_s: float


class _Search:
    """One run: what waits, what was found, what was left out."""

    def __init__(self, problem: Problem, *, top: int) -> None:
        self.problem, self.top = problem, top
        self.bounds = Bounds(problem)
        self.left = Left()
        self.found: list[Found] = []
        self.counts = {"frames": 0, "layouts": 0, "too_large": 0, "slower": 0, "estimated": 0}
        self.nearest: tuple[int, Workload, MemoryTimeline] | None = None

    def run(self) -> SearchResult:
        waiting = self._waiting()
        heapq.heapify(waiting)
        while waiting:
            item = heapq.heappop(waiting)
            if len(self.found) == self.top and item.score_s >= self.found[-1].score_s:
                self._leave_slower(item, 1 + len(waiting))
                break
            self._look_at(item)
        if not self.found:
            raise self._nothing_fits()
        rejected = tuple(
            Rejection(rule=rule, count=count, example=self.left.examples[rule][0], reason=self.left.examples[rule][1])
            for rule, count in self.left.counts.most_common()
        )
        return SearchResult(plans=tuple(self.found), rejected=rejected, counted=Counted(**self.counts))

    def _waiting(self) -> list[_Waiting]:
        waiting: list[_Waiting] = []
        for frame in frames(self.problem, left=self.left):
            self.counts["frames"] += 1
            for sharding in shardings(self.problem, frame):
                state = self.bounds.state_bytes(sharding)
                if state > self.bounds.capacity:
                    self._leave_large(sharding, "state_too_large", state)
                    continue
                for shape in variants(self.problem, sharding):
                    self.counts["layouts"] += 1
                    bound = self.bounds.of(shape, state=state)
                    if bound.least_bytes > self.bounds.capacity:
                        self._leave_large(shape, "least_too_large", bound.least_bytes)
                        continue
                    score_s = bound.step_s * (1 + COMPLEXITY_RATIO * num_techniques(shape))
                    waiting.append(_Waiting(score_s, len(waiting), shape, bound.step_s))
        return waiting

    def _look_at(self, item: _Waiting) -> None:
        """Estimate it as it is; if that is fast enough, choose what is recomputed; keep it if it is among the best."""
        self.counts["estimated"] += 1
        plain = with_cuts(self.problem, item.shape.layout(), bounds=self.bounds)
        time = estimate_step(plain)
        if len(self.found) == self.top and _score(plain.layout, time) >= self.found[-1].score_s:
            return self._leave_beaten(plain.layout, time)
        workload, memory = fitted(self.problem, plain, bounds=self.bounds)
        if not memory.fits:
            self.counts["too_large"] += 1
            return self._leave_peak(workload, memory)
        is_plain = workload is plain or (not workload.recompute and workload.layout.recompute == "none")
        found = Found(workload=workload, time=time if is_plain else estimate_step(workload), memory=memory)
        self.found.append(found)
        self.found.sort(key=lambda found: found.score_s)
        for beaten in self.found[self.top :]:
            self._leave_beaten(beaten.workload.layout, beaten.time)
        del self.found[self.top :]
        return None

    def _leave_large(self, shape: Shape, rule: str, needs: int) -> None:
        self.counts["too_large"] += 1
        if rule in self.left.examples:
            self.left.counts[rule] += 1
            return
        reason = say(f"search.{rule}", needs=format_bytes(needs), offers=format_bytes(self.bounds.capacity))
        self.left.add(rule, str(shape.layout()), reason)

    def _leave_peak(self, workload: Workload, memory: MemoryTimeline) -> None:
        if self.nearest is None or memory.device_bytes < self.nearest[0]:
            self.nearest = memory.device_bytes, workload, memory
        self.left.add("peak_too_large", str(workload.layout), say_burst(memory))

    def _leave_slower(self, item: _Waiting, count: int) -> None:
        self.counts["slower"] += count
        reason = say_slower(item.bound_s, self.found[-1].time.step_s)
        self.left.add("bound_slower", str(item.shape.layout()), reason)
        self.left.counts["bound_slower"] += count - 1

    def _leave_beaten(self, layout: Layout, time: StepTime) -> None:
        self.counts["slower"] += 1
        self.left.add("estimate_slower", str(layout), say_slower(time.step_s, self.found[0].time.step_s))

    def _nothing_fits(self) -> Infeasible:
        if self.nearest is not None:
            _, workload, memory = self.nearest
            return Infeasible("search.nothing_fits", layout=str(workload.layout), burst=say_burst(memory))
        reasons, ranks = self.left.counts.most_common(1), self.problem.cluster.num_ranks
        if reasons:
            layout, reason = self.left.examples[reasons[0][0]]
            return Infeasible("search.nothing_legal", ranks=ranks, layout=layout, reason=reason)
        return Infeasible("search.nothing_allowed", ranks=ranks)


def with_cuts(problem: Problem, layout: Layout, *, bounds: Bounds) -> Workload:
    """Give the workload of a layout with balanced cuts; what is to be chosen about recomputation is left out."""
    cuts = balanced_cuts(bounds.costs_of(layout), num_stages=layout.num_stages)
    return problem.workload(layout, cuts=cuts)


def fitted(problem: Problem, plain: Workload, *, bounds: Bounds) -> tuple[Workload, MemoryTimeline]:
    """Give the workload with as little recomputed as fits, and its memory."""
    if plain.layout.recompute != "auto":
        return plain, estimate_peak(plain, with_events=False)
    return fit_layers(plain, rates=bounds.rates, may_offload=problem.may_offload)


def say_burst(memory: MemoryTimeline) -> str:
    """Say by how much the fullest rank bursts, and with what."""
    worst = memory.worst
    term = largest_term(worst)
    return say(
        "search.peak_too_large",
        needs=format_bytes(worst.device_bytes),
        offers=format_bytes(memory.capacity_bytes),
        over=format_bytes(worst.device_bytes - memory.capacity_bytes),
        term=say(f"plan.part_{term}"),
        size=format_bytes(worst.parts[term]),
    )


def say_slower(step_s: float, best_s: float) -> str:
    """Say by how much a step is slower than another."""
    ratio = f"{step_s / best_s - 1:.1%}"
    return say("search.slower", step=format_duration(step_s), best=format_duration(best_s), ratio=ratio)
