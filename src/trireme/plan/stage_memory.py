"""What one pipeline stage needs on a rank: state, what a micro-batch leaves, and what stands only while it works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from trireme.plan.plan import LayerRecompute
from trireme.plan.rank_param import Once, expert_ranks, head_section, section_params, stage_sections
from trireme.plan.saved import SavedBytes, kernels_of, section_saved
from trireme.plan.state import NO_STATE, StateParts, compute_bytes, gathered_bytes, state_bytes, state_parts
from trireme.plan.workload import Workload

if TYPE_CHECKING:
    from trireme.graph import Block, ModelGraph, Section
    from trireme.plan.framework import Framework

BUCKET_BYTES = 25 * 2**20
"""A bucket of gradients on its way (torch's DistributedDataParallel has the same); two are alive at once."""

_GATHERED_BLOCKS = 2
"""Blocks whose weights are whole at once under ZeRO-3: the one that works, and the next, fetched ahead.

Source: Zhao et al. 2023, "PyTorch FSDP", section 4.3 (prefetching is limited to two all-gathers).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one stage on the first rank of its groups.

    Attributes:
        state: Parameters, gradients, optimizer.
        activations: Kept by one micro-batch from forward to backward.
        loss: Kept by one micro-batch behind the last layer: logits or their probabilities.
        shared: Tables and masks, once for all layers and micro-batches, by name.
        forward_work: Alive only while a forward runs.
        backward_work: Alive only while a backward runs: gradients of activations, what is recomputed.
        loss_work: Alive only while the loss is differentiated.
        gathered: Weights made whole for the moment (ZeRO-3).
        gradient_window: Gradients that are whole for the moment, and buckets.
        offloaded: Kept by one micro-batch in host memory.
    """

    state: StateParts
    activations: int
    loss: int
    shared: Mapping[str, int]
    forward_work: int
    backward_work: int
    loss_work: int
    gathered: int
    gradient_window: int
    offloaded: int


def stage_memory(workload: Workload, stage: int) -> StageMemory:
    """Add up a stage."""
    kept = _Kept()
    held = _Held()
    for section, recompute, offload, times in _weighted(workload, stage):
        if section.group != "head":
            kept.add(section_saved(workload, section, recompute), times=times, offload=offload)
        own = section_held(workload, section)
        state = replace(own.state, casts_each=0) if recompute == "full" else own.state
        held.add(own._replace(state=state), times=times, is_layer=section.group == "layers")
    loss = _head_saved(workload) if stage == workload.layout.num_stages - 1 else None
    for name, size in loss.shared if loss else ():
        kept.shared[name] = size
    return StageMemory(
        state=held.state,
        activations=kept.activations + kept.window,
        loss=loss.kept if loss else 0,
        shared=kept.shared,
        forward_work=kept.largest,
        backward_work=kept.recomputed + 2 * kept.largest,
        loss_work=_loss_work(workload) if loss else 0,
        gathered=_gathered_bytes(workload, held),
        gradient_window=_gradient_window_bytes(workload, held),
        offloaded=kept.offloaded,
    )


class SectionHeld(NamedTuple):
    """Parameters of a section on a rank: how many, how spread, their state."""

    names: frozenset[str]
    numel: int
    shards: int
    state: StateParts


class _Held:
    """Running sums over the sections of a stage; a tied parameter counts once."""

    def __init__(self) -> None:
        self.state, self.outside, self.shards = NO_STATE, 0, 1
        self.blocks: list[int] = []
        self._seen: set[str] = set()

    def add(self, held: SectionHeld, *, times: int, is_layer: bool) -> None:
        if not is_layer and held.names <= self._seen:
            return
        self._seen |= held.names
        self.state = self.state.plus(held.state, times=times)
        self.shards = max(self.shards, held.shards)
        if is_layer:
            self.blocks += [held.numel] * min(times, _GATHERED_BLOCKS)
        else:
            self.outside += held.numel


def section_held(workload: Workload, section: Section) -> SectionHeld:
    """Give what a rank holds of a section's parameters."""
    layout = workload.layout
    spread = layout.dp_shard * layout.cp, expert_ranks(workload)
    key = layout.tp, layout.ep, layout.zero, *spread, workload.precision, workload.optimizer, workload.adapters_only
    return _held(
        Once(section.block), section.group, key, workload.framework, Once(workload.model), _Ask(workload, section)
    )


class _Ask:
    """What answers a question that the cache has not heard; equal to any other, so it is no part of the key."""

    def __init__(self, workload: Workload, section: Section) -> None:
        self.workload, self.section = workload, section

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Ask)


@lru_cache(maxsize=65536)
def _held(
    block: Once[Block], group: str, key: tuple[object, ...], framework: Framework, model: Once[ModelGraph], ask: _Ask
) -> SectionHeld:
    params = tuple(section_params(ask.workload, ask.section))
    return SectionHeld(
        names=frozenset(param.name for param in params),
        numel=sum(param.numel for param in params),
        shards=max((param.shards for param in params), default=1),
        state=state_parts(ask.workload, params),
    )


class _Kept:
    """Running sums over the layers of a stage."""

    def __init__(self) -> None:
        self.activations = self.offloaded = self.recomputed = self.largest = self.window = 0
        self.shared: dict[str, int] = {}

    def add(self, saved: SavedBytes, *, times: int, offload: bool) -> None:
        if offload:  # two layers are on their way at once
            self.offloaded += times * saved.kept
            self.window = max(self.window, 2 * saved.kept)
        else:
            self.activations += times * saved.kept
        self.recomputed = max(self.recomputed, saved.all - saved.kept)
        self.largest = max(self.largest, saved.largest)
        self.shared |= dict(saved.shared)


def _weighted(workload: Workload, stage: int) -> Iterator[tuple[Section, LayerRecompute, bool, int]]:
    """Yield distinct sections of a stage with what is chosen for them and how often they are there; no head."""
    counts: Counter[tuple[int, LayerRecompute, bool]] = Counter()
    first: dict[tuple[int, LayerRecompute, bool], Section] = {}
    layer = workload.stage_layers(stage).start - 1
    for section in stage_sections(workload, stage):
        is_layer = section.group == "layers"
        layer += is_layer
        recompute = workload.recompute_of(layer) if is_layer else "none"
        key = id(section.block), recompute, is_layer and workload.offload_of(layer)
        counts[key] += 1
        first.setdefault(key, section)
    for key, times in counts.items():
        yield first[key], key[1], key[2], times


def _head_saved(workload: Workload) -> SavedBytes:
    """What head and loss keep; in fp32 where the framework's loss does so."""
    saved = section_saved(workload, head_section(workload.model))
    if workload.framework.float32_loss and kernels_of(workload).fused and workload.precision != "fp32":
        return SavedBytes(kept=saved.kept + saved.largest, all=saved.all, largest=saved.largest, shared=saved.shared)
    return saved


def _loss_work(workload: Workload) -> int:
    """The gradient of the logits; eager code also holds it in fp32, and the logits themselves to the end.

    Source: torch's cross_entropy on ``logits.float()`` as transformers calls it; a fused loss leaves one gradient.
    """
    logits = section_saved(workload, head_section(workload.model)).largest
    if kernels_of(workload).fused:
        return logits
    numbers = logits // 4  # what is kept of them is in fp32
    return numbers * (4 + 2 * compute_bytes(workload.precision))


def _gathered_bytes(workload: Workload, held: _Held) -> int:
    """Whole weights under ZeRO-3: two blocks, and what is in no block from forward to backward."""
    if workload.layout.zero < 3 or held.shards == 1:
        return 0
    largest = sorted(held.blocks, reverse=True)[:_GATHERED_BLOCKS]
    autocast = state_bytes(workload).cast if workload.framework.autocasts else 0
    return (sum(largest) + held.outside) * (gathered_bytes(workload) + autocast)


def _gradient_window_bytes(workload: Workload, held: _Held) -> int:
    """Whole gradients of the block that works under ZeRO-2 and 3, else buckets on their way."""
    layout = workload.layout
    if layout.dp * layout.cp == 1:
        return 0
    if layout.zero < 2:
        return 0 if workload.framework.keeps_gradients else 2 * BUCKET_BYTES
    return max(held.blocks, default=0) * state_bytes(workload).gradient
