"""How long each pipeline stage works on a micro-batch, and what it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.saved import section_saved
from trireme.plan.simulate import StageCost
from trireme.plan.time_data import DataSpans, data_exchange
from trireme.plan.time_layer import LayerWork, layer_seconds, layer_work
from trireme.plan.time_offload import offload_stall
from trireme.plan.time_place import Place, place_of

if TYPE_CHECKING:
    from trireme.graph import Block, Stack
    from trireme.plan.time_rates import Rates
    from trireme.plan.workload import Workload


class Unit(NamedTuple):
    """Equal layers of a stage, or what stands before or after them: their work, and how many there are.

    ``offloaded_bytes``: kept by each of them in host memory.
    """

    work: LayerWork
    recompute: str
    times: float
    offloaded_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage on one micro-batch.

    ``gather_s`` and ``reduce_s`` are the exchanges of data parallelism for all that it holds, once; ``num_units`` is
    how many layers, and so buckets, it has; ``stalled_s`` what it waits for host memory on each micro-batch.
    """

    units: list[Unit]
    cost: StageCost
    gather_s: float
    reduce_s: float
    params: float
    expert_params: float
    num_units: int
    stalled_s: float

    @property
    def forward_s(self) -> float:
        """The forward of one micro-batch."""
        return self.cost.forward_s

    @property
    def backward_s(self) -> float:
        """The whole backward of one micro-batch."""
        return self.cost.input_grad_s + self.cost.weight_grad_s


def build_stages(workload: Workload, *, rates: Rates, spans: DataSpans, layers_only: bool = False) -> list[Stage]:
    """Give every stage of a workload; equal layers are timed once. ``layers_only`` leaves out embedding and head."""
    known: dict[tuple[int, str, int], UnitSeconds] = {}
    built: dict[tuple[tuple[int, str, float, int], ...], Stage] = {}
    stages = []
    for units in stage_units(workload, layers_only=layers_only):
        key = tuple((id(unit.work), unit.recompute, unit.times, unit.offloaded_bytes) for unit in units)
        if key not in built:
            for unit in units:
                place = (id(unit.work), unit.recompute, unit.offloaded_bytes)
                if place not in known:
                    known[place] = _seconds(unit, workload=workload, rates=rates, spans=spans)
            built[key] = _stage(units, [known[id(unit.work), unit.recompute, unit.offloaded_bytes] for unit in units])
        stages.append(built[key])
    return stages


def _stage(units: list[Unit], seconds: list[UnitSeconds]) -> Stage:
    def total(column: int) -> float:
        return sum(unit.times * row[column] for unit, row in zip(units, seconds, strict=True))

    held = [unit.work.params for unit in units]
    experts = sum(unit.times * params.experts for unit, params in zip(units, held, strict=True))
    dense = sum(unit.times * params.dense for unit, params in zip(units, held, strict=True))
    return Stage(
        units=units,
        cost=StageCost(forward_s=total(0), input_grad_s=total(1), weight_grad_s=total(2)),
        gather_s=total(3),
        reduce_s=total(4),
        params=dense + experts,
        expert_params=experts,
        num_units=round(sum(unit.times for unit in units)),
        stalled_s=total(5),
    )


def stage_units(workload: Workload, *, layers_only: bool = False) -> list[list[Unit]]:
    """Give the units of every stage, equal layers counted together."""
    stages: list[defaultdict[tuple[int, bool, str, int], float]] = [
        defaultdict(float) for _ in range(workload.layout.num_stages)
    ]
    works: dict[tuple[int, bool], LayerWork] = {}
    starts = (0, *workload.cuts)
    stage = 0
    for layer, block, place, stack, narrow in _blocks(workload):
        while layer is not None and stage + 1 < len(starts) and layer >= starts[stage + 1]:
            stage += 1
        if layers_only and (layer is None or not narrow):
            continue
        recompute = "none" if layer is None else workload.recompute_of(layer)
        moved = _offloaded_bytes(workload, layer, block, stack) if narrow and workload.offload else 0
        key = (id(block), narrow)
        if key not in works:
            works[key] = layer_work(block, place, narrow=narrow)
        if layer is None and workload.framework.spreads_vocabulary:
            for counted in stages:
                counted[*key, recompute, moved] += 1 / len(stages)
        else:
            stages[stage][*key, recompute, moved] += 1
    return [
        [
            Unit(works[block, narrow], recompute, count, moved)
            for (block, narrow, recompute, moved), count in counted.items()
        ]
        for counted in stages
    ]


def _offloaded_bytes(workload: Workload, layer: int | None, block: Block, stack: Stack) -> int:
    from trireme.graph import Section

    if layer is None or not workload.offload_of(layer):
        return 0
    section = Section(group="layers", path="", block=block, stack=stack)
    return section_saved(workload, section, workload.recompute_of(layer)).kept


def _blocks(workload: Workload) -> Iterator[tuple[int | None, Block, Place, Stack, bool]]:
    """Every block in order; layers with their number, the others without, and whether it runs in narrow formats."""
    graph = workload.model
    layer = 0
    place = None
    for stack in graph.stacks:
        place = place_of(workload, graph.load(stack, workload.microbatch))
        yield (None if layer == 0 else layer), stack.before, place, stack, False
        for block in stack.blocks:
            yield layer, block, place, stack, True
            layer += 1
        yield None, stack.after, place, stack, False
    assert place is not None
    yield None, graph.head, place, stack, False
    yield None, graph.loss, place, stack, False


class UnitSeconds(NamedTuple):
    """One layer on one micro-batch, with what it shows of data parallelism; and that in full."""

    forward_s: float
    input_grad_s: float
    weight_grad_s: float
    gather_s: float
    reduce_s: float
    stalled_s: float


def _seconds(unit: Unit, *, workload: Workload, rates: Rates, spans: DataSpans) -> UnitSeconds:
    layout, framework = workload.layout, workload.framework
    seconds = layer_seconds(
        unit.work,
        rates=rates,
        framework=framework,
        recompute=unit.recompute,
        adapters_only=workload.adapters_only,
    )
    params = unit.work.params
    gather_s = reduce_s = 0.0
    if params.dense or params.experts:
        exchange = data_exchange(params, spans=spans, place=unit.work.place)
        gather_s = rates.data * exchange.gather_s
        reduce_s = 0.0 if workload.adapters_only else rates.data * exchange.reduce_s
    # Under a pipeline parameters stay gathered for the step, and gradients leave with the last micro-batch.
    gathered_s = gather_s if layout.zero == 3 and layout.pp == 1 else 0.0
    reduced_s = reduce_s if layout.zero >= 2 and layout.pp == 1 else 0.0
    hides = framework.overlaps_data
    back_s = seconds.backward_s
    shown_s = _beside(back_s, gathered_s + reduced_s, hides, rates) - back_s
    stall = offload_stall(unit.offloaded_bytes, seconds)
    return UnitSeconds(
        forward_s=_beside(seconds.forward_s, gathered_s, hides, rates) + stall.forward_s,
        input_grad_s=seconds.input_grad_s + seconds.repeated_s + shown_s + stall.backward_s,
        weight_grad_s=seconds.weight_grad_s,
        gather_s=gather_s,
        reduce_s=reduce_s,
        stalled_s=sum(stall),
    )


def _beside(compute_s: float, exchange_s: float, hides: bool, rates: Rates) -> float:
    """An exchange for the next layer beside the compute of this one: the longer, and what the other takes from it."""
    if not exchange_s:
        return compute_s
    if not hides:
        return compute_s + exchange_s
    return max(compute_s + rates.data_left * min(exchange_s, compute_s), exchange_s)
