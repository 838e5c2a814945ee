"""What each layer costs in seconds at one place of a layout, and cuts that balance it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from trireme.plan.plan import LayerRecompute
from trireme.plan.plan_cut import balance_cuts
from trireme.plan.time_layer import LayerSeconds, layer_seconds, layer_work
from trireme.plan.time_place import Place, place_of
from trireme.plan.time_rates import Rates

if TYPE_CHECKING:
    from trireme.graph import Block
    from trireme.plan.workload import Workload

_COST_STEPS = 16
"""Costs are compared in sixteenths of the dearest layer: finer differences are below the estimate's own error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """Seconds of one micro-batch: per layer by number, and what stands before the first and after the last.

    All are forward and backward together, without recomputation; ``forward_s`` is the forward of all.
    """

    layers: tuple[float, ...]
    first_s: float
    last_s: float
    forward_s: float

    @property
    def total_s(self) -> float:
        """All of the model."""
        return sum(self.layers) + self.first_s + self.last_s


def layer_costs(workload: Workload, *, rates: Rates) -> LayerCosts:
    """Give the seconds of every layer; what stands between two stacks counts for the layer before it."""
    model = workload.model
    sums = _Sums(workload, rates)
    for stack in model.stacks:
        place = place_of(workload, model.load(stack, workload.microbatch))
        is_last = stack is model.stacks[-1]
        sums.add_end(stack.before, place)
        for run in stack.runs():
            sums.layers += [sums.seconds(run.block, place, narrow=True, times=run.count)] * run.count
        for block in (stack.after, model.head, model.loss) if is_last else (stack.after,):
            sums.add_end(block, place, is_last=is_last)
    return LayerCosts(layers=tuple(sums.layers), first_s=sums.first_s, last_s=sums.last_s, forward_s=sums.forward_s)


class _Sums:
    """Seconds as they are gathered along the model."""

    def __init__(self, workload: Workload, rates: Rates) -> None:
        self.workload, self.rates = workload, rates
        self.layers: list[float] = []
        self.first_s = self.last_s = self.forward_s = 0.0

    def seconds(self, block: Block, place: Place, *, narrow: bool = False, times: int = 1) -> float:
        """Forward and backward of one block."""
        each = _block_seconds(self.workload, block, place, self.rates, "none", narrow=narrow)
        self.forward_s += times * each.forward_s
        return each.forward_s + each.backward_s

    def add_end(self, block: Block, place: Place, *, is_last: bool = False) -> None:
        """Add what stands before the first layer, between stacks or after the last one."""
        each_s = self.seconds(block, place)
        if is_last:
            self.last_s += each_s
        elif self.layers:
            self.layers[-1] += each_s
        else:
            self.first_s += each_s


def all_repeated_seconds(workload: Workload, recompute: LayerRecompute, *, rates: Rates) -> float:
    """Give the seconds that recomputing every layer adds to each micro-batch."""
    model, total_s = workload.model, 0.0
    for stack in model.stacks:
        place = place_of(workload, model.load(stack, workload.microbatch))
        for run in stack.runs():
            seconds = _block_seconds(workload, run.block, place, rates, recompute, narrow=True)
            total_s += run.count * seconds.repeated_s
    return total_s


def seconds_of(workload: Workload, layer: int, recompute: LayerRecompute, *, rates: Rates) -> LayerSeconds:
    """Give the seconds of one layer on one micro-batch.

    Raises:
        IndexError: There is no such layer.
    """
    model = workload.model
    for stack in model.stacks:
        if layer < len(stack.blocks):
            place = place_of(workload, model.load(stack, workload.microbatch))
            return _block_seconds(workload, stack.blocks[layer], place, rates, recompute, narrow=True)
        layer -= len(stack.blocks)
    raise IndexError(layer)


def _block_seconds(
    workload: Workload, block: Block, place: Place, rates: Rates, recompute: LayerRecompute, *, narrow: bool
) -> LayerSeconds:
    return layer_seconds(
        layer_work(block, place, narrow=narrow),
        rates=rates,
        framework=workload.framework,
        recompute=recompute,
        adapters_only=workload.adapters_only,
    )


def balanced_cuts(costs: LayerCosts, *, num_stages: int) -> tuple[int, ...]:
    """Cut so that the dearest stage, embedding and head counted where they run, is as cheap as can be."""
    unit = max(max(costs.layers), 1e-12) / _COST_STEPS
    steps = [round(cost / unit) for cost in costs.layers]
    steps[0] += round(costs.first_s / unit)
    steps[-1] += round(costs.last_s / unit)
    return _cuts(tuple(steps), num_stages)


@lru_cache(maxsize=4096)
def _cuts(steps: tuple[int, ...], num_stages: int) -> tuple[int, ...]:
    return balance_cuts(steps, num_stages=num_stages)
