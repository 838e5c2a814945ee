"""Rates fitted to published runs, and how far real runs lie from what they predict.

Source:
    ``benchmarks/data/published_runs.csv`` through ``benchmarks/fit_planner.py``; ``benchmarks/planner_accuracy.md``
    says how well they predict runs that they weren't fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.time_rates import Rates, family_of

if TYPE_CHECKING:
    from trireme.plan.workload import Workload


class Spread(NamedTuple):
    """The interval's ends as shares of the prediction."""

    low: float
    high: float


PRIORS: Mapping[str, Rates] = MappingProxyType(
    {
        "volta": Rates(products=1.1, attention=2.0),
        "ampere": Rates(products=1.1, attention=1.5),
        "hopper": Rates(products=1.15, attention=2.2, library_attention=1.5),
        "blackwell": Rates(products=1.15, attention=2.2, library_attention=1.5),
    }
)
"""What was expected before any run was looked at."""

# fitted: begin
RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "volta": Rates(
            products=0.7929,
            ramp=0.07437,
            narrow=1.2,
            attention=2,
            library_attention=1.5,
            fused_traffic=1.386,
            eager_traffic=2,
            tensor=0.8299,
            tensor_hidden=0.2298,
            data=0.4771,
            data_left=0.142,
            pipeline=0.7031,
            expert=0.7396,
            kernel_s=1.7e-05,
            step_s=0.03338,
            straggle=0.003754,
        ),
        "ampere": Rates(
            products=1.298,
            ramp=0.07437,
            narrow=1.2,
            attention=2.539,
            library_attention=1.861,
            fused_traffic=0.757,
            eager_traffic=1.304,
            tensor=0.8299,
            tensor_hidden=0.2298,
            data=0.4771,
            data_left=0.142,
            pipeline=0.7031,
            expert=0.7396,
            kernel_s=1.7e-05,
            step_s=0.03338,
            straggle=0.003754,
        ),
        "hopper": Rates(
            products=1.245,
            ramp=0.07437,
            narrow=0.9862,
            attention=3.716,
            library_attention=1.525,
            fused_traffic=1.755,
            eager_traffic=2.633,
            tensor=0.8299,
            tensor_hidden=0.2298,
            data=0.4771,
            data_left=0.142,
            pipeline=0.7031,
            expert=0.7396,
            kernel_s=1.7e-05,
            step_s=0.03338,
            straggle=0.003754,
        ),
        "blackwell": Rates(
            products=1.567,
            ramp=0.07437,
            narrow=1.279,
            attention=2.902,
            library_attention=1.324,
            fused_traffic=1.303,
            eager_traffic=2,
            tensor=0.8299,
            tensor_hidden=0.2298,
            data=0.4771,
            data_left=0.142,
            pipeline=0.7031,
            expert=0.7396,
            kernel_s=1.7e-05,
            step_s=0.03338,
            straggle=0.003754,
        ),
    }
)
"""Fitted on 2026-11-30."""

SPREADS: Mapping[str, Spread] = MappingProxyType({"dense": Spread(0.85, 1.2), "experts": Spread(0.75, 1.35)})
# fitted: end


def rates_of(workload: Workload) -> Rates:
    """Give the rates of a workload's accelerator; an unknown generation gets those of the one with most runs."""
    return RATES.get(family_of(workload.cluster.accelerator), RATES["ampere"])


def spread_of(workload: Workload) -> Spread:
    """Give how far real runs lie from predictions of this kind.

    Where no run on the generation was compared with, the interval is half as wide again on either side.
    """
    spread = SPREADS["experts" if _has_experts(workload) else "dense"]
    if family_of(workload.cluster.accelerator) in RATES:
        return spread
    return Spread(spread.low / 1.5, spread.high * 1.5)


def _has_experts(workload: Workload) -> bool:
    blocks = {id(block): block for stack in workload.model.stacks for block in stack.blocks}
    return any(op.experts is not None for block in blocks.values() for op in block.ops)
