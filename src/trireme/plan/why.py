"""Why a layout that somebody hoped for is not the one that was found: the first thing that stands against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from trireme.errors import Infeasible, LayoutError
from trireme.plan.legality_cost import layout_costs
from trireme.plan.problem import Problem
from trireme.plan.search import Found, search
from trireme.words import say

Verdict = Literal["illegal", "too_large", "slower", "best"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What became of a wish.

    ``found`` is the best layout that grants it, None where there is none; ``costs`` is what it pays for degrees that
    don't come out even.
    """

    verdict: Verdict
    reason: str
    found: Found | None = None
    costs: tuple[str, ...] = ()


def why_not(problem: Problem, wish: Mapping[str, Any], *, best: Found) -> Why:
    """Say what stands against a wish: a rule, the memory with the term that bursts, or the time that it takes."""
    wished = replace(problem, fix=dict(wish))
    try:
        found = search(wished, top=1).best
    except Infeasible as error:
        verdict: Verdict = "too_large" if error.key == "search.nothing_fits" else "illegal"
        return Why(verdict=verdict, reason=str(error))
    except LayoutError as error:
        return Why(verdict="illegal", reason=str(error))
    costs = tuple(cost.reason for cost in layout_costs(found.workload.layout, problem.facts()))
    if found.score_s <= best.score_s * (1 + 1e-9):
        return Why(verdict="best", reason=say("search.why_best"), found=found, costs=costs)
    return Why(verdict="slower", reason=_compared(found, best), found=found, costs=costs)


def _compared(found: Found, best: Found) -> str:
    """How much slower, and the part of the step that grew most."""
    more = {name: found.time.parts.get(name, 0.0) - best.time.parts.get(name, 0.0) for name in found.time.parts}
    part = max(more, key=lambda name: more[name])
    return say(
        "search.why_slower",
        layout=str(found.workload.layout),
        step=f"{found.time.step_s:.2f}",
        best=f"{best.time.step_s:.2f}",
        ratio=f"{found.time.step_s / best.time.step_s - 1:.1%}",
        part=say(f"search.part_{part}"),
        more=f"{more[part]:.2f}",
    )
