"""What fits: the judgement on memory that a table of runs is held against, and the recomputation that it takes."""

from __future__ import annotations

from dataclasses import replace

from trireme.plan.peak import MemoryTimeline, RankMemory, estimate_peak
from trireme.plan.plan import LayerRecompute
from trireme.plan.workload import Workload

_STEP = 0.12
"""Share of layers recomputed on top where a straight line between none and all of them asked for too few."""

_ELASTIC_RATIO = 0.5
"""Of what the allocator keeps beside live tensors, the part that it cannot give back before it gives up."""


def brief(workload: Workload) -> Workload:
    """Give the same with fewer micro-batches: once the pipeline is full, memory goes up and down in the same way."""
    layout = workload.layout
    count = min(layout.num_microbatches, 2 * layout.pp + 1)
    if count == layout.num_microbatches:
        return workload
    seqs = count * workload.microbatch_seqs * layout.dp
    return replace(workload, layout=replace(layout, microbatches_per_step=count), global_batch_seqs=seqs)


def needed_bytes(rank: RankMemory) -> int:
    """Give what a rank can't do without: live tensors, the context, and the holes between them."""
    return rank.allocated_bytes + rank.context_bytes + round(_ELASTIC_RATIO * rank.reserved_bytes)


def holds(memory: MemoryTimeline) -> bool:
    """Whether every rank's device holds what it needs."""
    return all(needed_bytes(rank) <= memory.capacity_bytes for rank in memory.ranks)


def fitted(workload: Workload) -> tuple[Workload, float]:
    """Give a workload that nobody says is recomputed with as many layers recomputed as it takes to fit.

    Returns it with the share of its layers; as it was where it fits, or where even all of them don't help.
    """
    memory = estimate_peak(brief(workload))
    if holds(memory):
        return workload, 0.0
    everything = replace(workload, recompute=_spread(1.0, num_layers=workload.model.num_layers))
    least = estimate_peak(brief(everything))
    if not holds(least):
        return workload, 0.0
    most_bytes = max(needed_bytes(rank) for rank in memory.ranks)
    least_bytes = max(needed_bytes(rank) for rank in least.ranks)
    share = (most_bytes - memory.capacity_bytes) / max(1, most_bytes - least_bytes)
    while share < 1.0:
        tried = replace(workload, recompute=_spread(share, num_layers=workload.model.num_layers))
        if holds(estimate_peak(brief(tried))):
            return tried, share
        share += _STEP
    return everything, 1.0


def with_cheap_recompute(workload: Workload) -> Workload:
    """Give the same with selective recomputation in place of full, layer by layer."""
    if not workload.recompute:
        return workload
    return replace(workload, recompute=tuple("none" if kind == "none" else "selective" for kind in workload.recompute))


def _spread(share: float, *, num_layers: int) -> tuple[LayerRecompute, ...]:
    """Recomputed layers strewn evenly, so that every stage has its part."""
    return tuple("full" if int((layer + 1) * share) > int(layer * share) else "none" for layer in range(num_layers))
