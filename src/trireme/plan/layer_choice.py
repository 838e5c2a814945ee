"""Which layers recompute or offload: the least time that lets every rank of the pipeline fit, chosen exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.knapsack import Choice, Group, Option, choose
from trireme.plan.layer_cost import seconds_of
from trireme.plan.peak import FRAGMENTATION_RATIO, MemoryTimeline, estimate_peak, peak_microbatches
from trireme.plan.plan import LayerRecompute
from trireme.plan.rank_param import Once, stage_sections, stages_of_pipeline_rank
from trireme.plan.saved import section_saved
from trireme.plan.schedule import ScheduleName, build_schedule
from trireme.plan.stage_memory import section_held
from trireme.plan.time_offload import offload_stall
from trireme.plan.time_rates import Rates
from trireme.plan.time_table import rates_of
from trireme.plan.workload import Workload

if TYPE_CHECKING:
    from trireme.graph import Section


class Way(NamedTuple):
    """One way to treat a layer."""

    recompute: LayerRecompute
    offload: bool


def fit_layers(workload: Workload, *, rates: Rates, may_offload: bool = False) -> tuple[Workload, MemoryTimeline]:
    """Give the workload with just as much recomputed as makes it fit, and its memory; it may not fit even so."""
    plain = replace(workload, layout=replace(workload.layout, recompute="none"), recompute=(), offload=())
    timeline = estimate_peak(plain, with_events=False)
    if timeline.fits or workload.layout.schedule in ("zb", "zbv"):
        return plain, timeline
    ways = _ways(may_offload)
    recompute_all: LayerRecompute = "full"
    everything = replace(plain, recompute=(recompute_all,) * plain.model.num_layers)
    least = estimate_peak(everything, with_events=False)
    chosen = _chosen(everything, least, ways=ways, rates=rates) if least.fits else None
    if chosen is None:
        return replace(everything, layout=replace(plain.layout, recompute="full"), recompute=()), least
    timeline = estimate_peak(chosen, with_events=False)
    return (chosen, timeline) if timeline.fits else (everything, least)


def fit_recompute(workload: Workload) -> tuple[Workload, MemoryTimeline]:
    """Give a workload, whose layout is settled, with just as much recomputed as makes it fit; it may not even so."""
    return fit_layers(workload, rates=rates_of(workload))


def _ways(may_offload: bool) -> tuple[Way, ...]:
    ways = (Way("none", False), Way("selective", False), Way("full", False))
    return (*ways, Way("none", True), Way("full", True)) if may_offload else ways


def _chosen(everything: Workload, least: MemoryTimeline, *, ways: Sequence[Way], rates: Rates) -> Workload | None:
    """Choose for each pipeline rank on its own: what one recomputes gives no other room."""
    layers: dict[int, Way] = {}
    for memory in least.ranks:
        room = least.capacity_bytes - memory.device_bytes
        groups = list(_groups(everything, memory.pp_rank, ways=ways, rates=rates))
        full = sum(group.count * group.options[2].size_bytes for _, group in groups)
        choice = choose([group for _, group in groups], budget_bytes=full + int(room / (1 + FRAGMENTATION_RATIO)))
        if choice is None:
            return None
        layers |= dict(_dealt([numbers for numbers, _ in groups], choice, ways))
    numbers = range(everything.model.num_layers)
    offload = tuple(layers[number].offload for number in numbers)
    return replace(
        everything,
        layout=replace(everything.layout, recompute="auto"),
        recompute=tuple(layers[number].recompute for number in numbers),
        offload=offload if any(offload) else (),
    )


def _dealt(numbers: Sequence[Sequence[int]], choice: Choice, ways: Sequence[Way]) -> Iterator[tuple[int, Way]]:
    """Give each layer its way; the last layers of a stage keep most, for their backward comes first."""
    for layers, counts in zip(numbers, choice.counts, strict=True):
        wanted = [way for way, count in zip(ways, counts, strict=True) for _ in range(count)]
        yield from zip(sorted(layers, reverse=True), wanted, strict=True)


def _groups(
    workload: Workload, pp_rank: int, *, ways: Sequence[Way], rates: Rates
) -> Iterator[tuple[list[int], Group]]:
    """Equal layers of each stage of a rank, with what each way costs over a whole step."""
    held = most_held(workload)
    for stage in stages_of_pipeline_rank(workload, pp_rank):
        alike: dict[Once[object], tuple[list[int], Section]] = {}
        sections = [section for section in stage_sections(workload, stage) if section.group == "layers"]
        for number, section in zip(workload.stage_layers(stage), sections, strict=True):
            alike.setdefault(Once(section.block), ([], section))[0].append(number)
        for numbers, section in alike.values():
            options = tuple(_option(workload, section, numbers[0], way, held=held[stage], rates=rates) for way in ways)
            yield numbers, Group(count=len(numbers), options=options)


def _option(workload: Workload, section: Section, layer: int, way: Way, *, held: int, rates: Rates) -> Option:
    saved = section_saved(workload, section, way.recompute)
    seconds = seconds_of(workload, layer, way.recompute, rates=rates)
    time_s = seconds.repeated_s
    if way.offload:
        time_s += sum(offload_stall(saved.kept, seconds))
    casts = 0 if way.recompute == "full" else section_held(workload, section).state.casts_each
    size = ((0 if way.offload else saved.kept) + casts) * held
    return Option(size, time_s * workload.layout.num_microbatches)


def most_held(workload: Workload) -> tuple[int, ...]:
    """Most micro-batches of each stage that wait for their backward at once."""
    layout = workload.layout
    return _most_held(layout.schedule, layout.pp, peak_microbatches(layout), layout.vp)


@lru_cache(maxsize=512)
def _most_held(name: ScheduleName, pp: int, count: int, vp: int) -> tuple[int, ...]:
    schedule = build_schedule(name, pp=pp, num_microbatches=count, vp=vp)
    held = [0] * schedule.num_stages
    most = [0] * schedule.num_stages
    for actions in schedule.ranks:
        for kind, stage, _ in actions:
            if kind == "F":
                held[stage] += 1
                most[stage] = max(most[stage], held[stage])
            elif kind != "I":
                held[stage] -= 1
    return tuple(most)
