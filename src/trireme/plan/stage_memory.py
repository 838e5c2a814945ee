"""What one pipeline stage needs on a rank: state, what a micro-batch leaves, and what stands only while it works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trireme.plan.plan import LayerRecompute
from trireme.plan.rank_param import RankParam, head_section, stage_params, stage_sections
from trireme.plan.saved import SavedBytes, kernels_of, section_saved
from trireme.plan.state import StateParts, compute_bytes, state_bytes, state_parts
from trireme.plan.workload import Workload

if TYPE_CHECKING:
    from trireme.graph import Section

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
    params = tuple(stage_params(workload, stage))
    kept = _Kept()
    for section, recompute, offload, times in _weighted(workload, stage):
        kept.add(section_saved(workload, section, recompute), times=times, offload=offload)
    loss = _head_saved(workload) if stage == workload.layout.num_stages - 1 else None
    for name, size in loss.shared if loss else ():
        kept.shared[name] = size
    return StageMemory(
        state=state_parts(workload, params),
        activations=kept.activations + kept.window,
        loss=loss.kept if loss else 0,
        shared=kept.shared,
        forward_work=kept.largest,
        backward_work=kept.recomputed + 2 * kept.largest,
        loss_work=_loss_work(workload) if loss else 0,
        gathered=_gathered_bytes(workload, params),
        gradient_window=_gradient_window_bytes(workload, params),
        offloaded=kept.offloaded,
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
        if section.group == "head":
            continue
        recompute = workload.recompute_of(layer) if is_layer else "none"
        key = id(section.block), recompute, is_layer and workload.offload_of(layer)
        counts[key] += 1
        first.setdefault(key, section)
    for key, times in counts.items():
        yield first[key], key[1], key[2], times


def _head_saved(workload: Workload) -> SavedBytes:
    """What head and loss keep; in fp32 where the framework's loss does so."""
    *_, last = workload.model.sections()
    saved = section_saved(workload, head_section(workload.model, last))
    if workload.framework.float32_loss and kernels_of(workload).fused and workload.precision != "fp32":
        return SavedBytes(kept=saved.kept + saved.largest, all=saved.all, largest=saved.largest, shared=saved.shared)
    return saved


def _loss_work(workload: Workload) -> int:
    """The gradient of the logits; eager code also holds it in fp32, and the logits themselves to the end.

    Source: torch's cross_entropy on ``logits.float()`` as transformers calls it; a fused loss leaves one gradient.
    """
    *_, last = workload.model.sections()
    logits = section_saved(workload, head_section(workload.model, last)).largest
    if kernels_of(workload).fused:
        return logits
    numbers = logits // 4  # what is kept of them is in fp32
    return numbers * (4 + 2 * compute_bytes(workload.precision))


def _gathered_bytes(workload: Workload, params: tuple[RankParam, ...]) -> int:
    """Whole weights under ZeRO-3: two blocks, and what is in no block from forward to backward."""
    if workload.layout.zero < 3 or max((param.shards for param in params), default=1) == 1:
        return 0
    blocks = _block_numels(params)
    outside = sum(param.numel for param in params if param.group != "layers")
    largest = sorted(blocks.values(), reverse=True)[:_GATHERED_BLOCKS]
    return (sum(largest) + outside) * compute_bytes(workload.precision)


def _gradient_window_bytes(workload: Workload, params: tuple[RankParam, ...]) -> int:
    """Whole gradients of the block that works under ZeRO-2 and 3, else buckets on their way."""
    layout = workload.layout
    if layout.dp * layout.cp == 1:
        return 0
    if layout.zero < 2:
        return 0 if workload.framework.keeps_gradients else 2 * BUCKET_BYTES
    largest = max(_block_numels(params).values(), default=0)
    return largest * state_bytes(workload).gradient


def _block_numels(params: tuple[RankParam, ...]) -> Counter[str]:
    """Parameters of each layer on this rank."""
    numels: Counter[str] = Counter()
    for param in params:
        if param.group == "layers":
            numels[param.layer] += param.numel
    return numels
