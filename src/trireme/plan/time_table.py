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
            products=0.7935,
            ramp=0.07663,
            narrow=1.2,
            attention=2,
            library_attention=1.5,
            fused_traffic=1.314,
            eager_traffic=2,
            tensor=0.9081,
            tensor_hidden=0.2521,
            data=0.546,
            data_left=0.13,
            pipeline=0.705,
            expert=0.7324,
            kernel_s=1.741e-05,
            step_s=0.04014,
            straggle=0.004083,
        ),
        "ampere": Rates(
            products=1.24,
            ramp=0.07663,
            narrow=1.2,
            attention=2.767,
            library_attention=1.935,
            fused_traffic=0.7662,
            eager_traffic=2.099,
            tensor=0.9081,
            tensor_hidden=0.2521,
            data=0.546,
            data_left=0.13,
            pipeline=0.705,
            expert=0.7324,
            kernel_s=1.741e-05,
            step_s=0.04014,
            straggle=0.004083,
        ),
        "hopper": Rates(
            products=1.215,
            ramp=0.07663,
            narrow=0.9618,
            attention=3.795,
            library_attention=1.536,
            fused_traffic=1.765,
            eager_traffic=2.659,
            tensor=0.9081,
            tensor_hidden=0.2521,
            data=0.546,
            data_left=0.13,
            pipeline=0.705,
            expert=0.7324,
            kernel_s=1.741e-05,
            step_s=0.04014,
            straggle=0.004083,
        ),
        "blackwell": Rates(
            products=1.564,
            ramp=0.07663,
            narrow=1.304,
            attention=2.765,
            library_attention=1.239,
            fused_traffic=1.28,
            eager_traffic=2,
            tensor=0.9081,
            tensor_hidden=0.2521,
            data=0.546,
            data_left=0.13,
            pipeline=0.705,
            expert=0.7324,
            kernel_s=1.741e-05,
            step_s=0.04014,
            straggle=0.004083,
        ),
    }
)
"""Fitted on 2026-11-30."""

SPREADS: Mapping[str, Spread] = MappingProxyType(
    {
        "dense": Spread(0.855, 1.186),
        "experts": Spread(0.708, 1.206),
    }
)
"""Where a tenth of left-out runs lie below, and a tenth above."""
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
