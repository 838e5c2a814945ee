"""Whether a workload fits its devices, and if not: which term burst, by how much, and what would fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from trireme.errors import Infeasible
from trireme.plan.layout import Layout
from trireme.plan.legality import check_layout
from trireme.plan.legality_facts import facts_of_graph
from trireme.plan.peak import MemoryTimeline, RankMemory, estimate_peak
from trireme.plan.workload import Workload
from trireme.units import format_bytes
from trireme.words import say

_STATE = ("parameters", "gradients", "optimizer", "weight_casts")


def require_fit(workload: Workload) -> MemoryTimeline:
    """Give the memory of a workload that fits.

    Raises:
        Infeasible: It doesn't; the message names the largest term, by how much it bursts and what would fit.
    """
    timeline = estimate_peak(workload)
    if timeline.fits:
        return timeline
    worst = timeline.worst
    term = largest_term(worst)
    fitting = next(fitting_changes(workload), None)
    raise Infeasible(
        "memory.does_not_fit" if fitting else "memory.nothing_fits",
        layout=str(workload.layout),
        needs=format_bytes(worst.device_bytes),
        offers=format_bytes(timeline.capacity_bytes),
        over=format_bytes(worst.device_bytes - timeline.capacity_bytes),
        where=say_event(worst),
        term=say(f"plan.part_{term}"),
        size=format_bytes(worst.parts[term]),
        fits=fitting or "",
    )


def largest_term(memory: RankMemory) -> str:
    """Name the part that takes most at the peak."""
    return max(memory.parts, key=lambda name: memory.parts[name])


def say_event(memory: RankMemory) -> str:
    """Say when the peak is, in the user's language."""
    peak = memory.peak
    return say(f"memory.at_{peak.moment}", rank=memory.pp_rank, stage=peak.stage, microbatch=peak.microbatch)


def fitting_changes(workload: Workload) -> Iterator[str]:
    """Yield changes of one or two settings that make it fit, the gentlest first, as a user writes them."""
    for changed in _changes(workload.layout):
        trial = _try(workload, changed)
        if trial is not None and trial.fits:
            yield _difference(workload.layout, changed)


def _try(workload: Workload, layout: Layout) -> MemoryTimeline | None:
    facts = facts_of_graph(workload.model, seq_len=workload.seq_len, global_batch_seqs=workload.global_batch_seqs)
    if check_layout(layout, facts):
        return None
    has_cuts = layout.num_stages == workload.layout.num_stages
    return estimate_peak(replace(workload, layout=layout, cuts=workload.cuts if has_cuts else (), recompute=()))


def _changes(layout: Layout) -> Iterator[Layout]:
    gentle = [layout, *(replace(layout, recompute=kind) for kind in ("selective", "full") if kind != layout.recompute)]
    for each in gentle:
        if each is not layout:
            yield each
        for factor in (2, 4, 8, 16):
            yield replace(each, microbatches_per_step=layout.num_microbatches * factor)
    for each in gentle:
        ranks = layout.dp
        for zero in range(layout.zero + 1, 4):
            if ranks > 1:
                yield replace(each, zero=zero, dp_shard=ranks, dp_replicate=1)
    full = gentle[-1]
    for key in ("tp", "pp"):
        for factor in (2, 4, 8):
            if layout.dp % factor == 0:
                yield _moved(full, key, factor)


def _moved(layout: Layout, key: str, factor: int) -> Layout:
    """Take ranks from data parallelism."""
    degree = getattr(layout, key) * factor
    if layout.dp_shard % factor == 0:
        return replace(layout, **{key: degree, "dp_shard": layout.dp_shard // factor})
    return replace(layout, **{key: degree, "dp_shard": 1, "dp_replicate": layout.dp // factor})


def _difference(asked: Layout, changed: Layout) -> str:
    """Say what was changed, in the words of a layout."""
    words = []
    if changed.recompute != asked.recompute:
        words.append(f"recompute={changed.recompute}")
    if changed.num_microbatches != asked.num_microbatches:
        words.append(f"micro={changed.num_microbatches}")
    if changed.zero != asked.zero:
        words.append(f"zero{changed.zero}")
    words += [f"{key}={getattr(changed, key)}" for key in ("tp", "pp") if getattr(changed, key) != getattr(asked, key)]
    return ",".join(words)
