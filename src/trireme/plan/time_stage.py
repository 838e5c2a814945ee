"""How long each pipeline stage works on a micro-batch, and what it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.simulate import StageCost
from trireme.plan.time_data import DataSpans, data_exchange
from trireme.plan.time_layer import LayerSeconds, LayerWork, LocalParams, layer_seconds, layer_work
from trireme.plan.time_place import Place, place_of

if TYPE_CHECKING:
    from trireme.graph import Block
    from trireme.plan.time_rates import Rates
    from trireme.plan.workload import Workload


class Unit(NamedTuple):
    """Equal layers of a stage, or what stands before or after them: their work, and how many there are."""

    work: LayerWork
    recompute: str
    times: float


@dataclass(slots=True)
class Stage:
    """One stage on one micro-batch.

    ``gather_s`` and ``reduce_s`` are the exchanges of data parallelism for all that it holds, once.
    """

    units: list[Unit] = field(default_factory=list)
    forward_s: float = 0.0
    input_grad_s: float = 0.0
    weight_grad_s: float = 0.0
    gather_s: float = 0.0
    reduce_s: float = 0.0
    params: float = 0.0
    expert_params: float = 0.0

    @property
    def cost(self) -> StageCost:
        """As the simulator takes it."""
        return StageCost(forward_s=self.forward_s, input_grad_s=self.input_grad_s, weight_grad_s=self.weight_grad_s)

    @property
    def backward_s(self) -> float:
        """The whole backward of one micro-batch."""
        return self.input_grad_s + self.weight_grad_s

    @property
    def num_units(self) -> int:
        """How many layers, and so buckets, it has."""
        return round(sum(unit.times for unit in self.units))


def build_stages(workload: Workload, *, rates: Rates, spans: DataSpans) -> list[Stage]:
    """Give every stage of a workload."""
    stages = [Stage(units=units) for units in stage_units(workload)]
    for stage in stages:
        for unit in stage.units:
            _add(stage, unit, workload=workload, rates=rates, spans=spans)
    return stages


def stage_units(workload: Workload) -> list[list[Unit]]:
    """Give the units of every stage, equal layers counted together."""
    stages: list[defaultdict[tuple[int, bool, str], float]] = [
        defaultdict(float) for _ in range(workload.layout.num_stages)
    ]
    works: dict[tuple[int, bool], LayerWork] = {}
    starts = (0, *workload.cuts)
    stage = 0
    for layer, block, place, narrow in _blocks(workload):
        while layer is not None and stage + 1 < len(starts) and layer >= starts[stage + 1]:
            stage += 1
        recompute = "none" if layer is None else workload.recompute_of(layer)
        key = (id(block), narrow)
        if key not in works:
            works[key] = layer_work(block, place, narrow=narrow)
        if layer is None and workload.framework.spreads_vocabulary:
            for counted in stages:
                counted[*key, recompute] += 1 / len(stages)
        else:
            stages[stage][*key, recompute] += 1
    return [
        [Unit(works[block, narrow], recompute, count) for (block, narrow, recompute), count in counted.items()]
        for counted in stages
    ]


def _blocks(workload: Workload) -> Iterator[tuple[int | None, Block, Place, bool]]:
    """Every block in order; layers with their number, the others without, and whether it runs in narrow formats."""
    graph = workload.model
    layer = 0
    place = None
    for stack in graph.stacks:
        place = place_of(workload, graph.load(stack, workload.microbatch))
        yield (None if layer == 0 else layer), stack.before, place, False
        for block in stack.blocks:
            yield layer, block, place, True
            layer += 1
        yield None, stack.after, place, False
    assert place is not None
    yield None, graph.head, place, False
    yield None, graph.loss, place, False


def _add(stage: Stage, unit: Unit, *, workload: Workload, rates: Rates, spans: DataSpans) -> None:
    layout, framework = workload.layout, workload.framework
    seconds = layer_seconds(
        unit.work,
        rates=rates,
        framework=framework,
        recompute=unit.recompute,
        adapters_only=workload.adapters_only,
    )
    params = unit.work.params
    held = params.dense + params.experts
    stage.params += unit.times * held
    stage.expert_params += unit.times * params.experts
    gather_s = reduce_s = 0.0
    if held:
        exchange = data_exchange(params, spans=spans, place=unit.work.place)
        gather_s, reduce_s = rates.data * exchange.gather_s, rates.data * exchange.reduce_s
    if workload.adapters_only:
        reduce_s = 0.0
    stage.gather_s += unit.times * gather_s
    stage.reduce_s += unit.times * reduce_s
    hides = framework.overlaps_data
    is_gathered = layout.zero == 3 and layout.pp == 1
    is_reduced = layout.zero >= 2 and layout.pp == 1
    stage.forward_s += unit.times * _beside(seconds.forward_s, gather_s if is_gathered else 0.0, hides, rates)
    sent_s = (gather_s if is_gathered else 0.0) + (reduce_s if is_reduced else 0.0)
    shown_s = _beside(seconds.backward_s, sent_s, hides, rates) - seconds.backward_s
    stage.input_grad_s += unit.times * (seconds.input_grad_s + seconds.repeated_s + shown_s)
    stage.weight_grad_s += unit.times * seconds.weight_grad_s


def _beside(compute_s: float, exchange_s: float, hides: bool, rates: Rates) -> float:
    """An exchange for the next layer beside the compute of this one: the longer, and what the other takes from it."""
    if not exchange_s:
        return compute_s
    if not hides:
        return compute_s + exchange_s
    return max(compute_s + rates.data_left * min(exchange_s, compute_s), exchange_s)


__all__ = ["LayerSeconds", "LocalParams", "Stage", "Unit", "build_stages", "stage_units"]
