"""Workload: what is run where and how; the one input of both estimators, memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, get_args

from trireme.errors import LayoutError
from trireme.plan.framework import TRIREME, Framework
from trireme.plan.plan import LayerRecompute

if TYPE_CHECKING:
    from trireme.cluster import Cluster
    from trireme.graph import MicroBatch, ModelGraph
    from trireme.plan.layout import Layout

PrecisionName = Literal["fp32", "bf16", "fp16", "bf16_master", "fp16_master", "bf16_pure", "fp8", "fp4"]
"""``bf16``, ``fp16``: products in 16 bits, fp32 weights somewhere (the framework says where). ``bf16_master``,
``fp16_master``: 16-bit weights and gradients, fp32 copies in the optimizer. ``bf16_pure``: nothing in fp32. ``fp8``,
``fp4``: as bf16 with the large products in 8 or 4 bits."""

OptimizerName = Literal["adamw", "adamw_bf16", "sgd", "momentum", "adafactor", "lion", "muon"]
KernelSet = Literal["eager", "flash", "fused", "unflashed"]
"""``eager``: score matrices are kept. ``flash``: fused attention, all else eager. ``fused``: norms, gates and loss too.
``unflashed``: score matrices are kept, all else is fused.
"""

PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
KERNEL_SETS: tuple[KernelSet, ...] = get_args(KernelSet)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A training step of one model in one layout on one cluster.

    ``cuts`` are the layers (counted over all stacks) at which stages 1, 2 ... begin; empty where there are several
    stages means cut evenly (``even_cuts``). ``recompute`` and ``offload`` have one entry per layer; empty means what
    the layout says for all of them, and no offload. ``adapters_only``: the model's own weights are frozen (LoRA).
    """

    model: ModelGraph
    cluster: Cluster
    layout: Layout
    cuts: tuple[int, ...] = ()
    precision: PrecisionName = "bf16"
    optimizer: OptimizerName = "adamw"
    global_batch_seqs: int
    seq_len: int
    source_len: int | None = None
    kernels: KernelSet = "fused"
    recompute: tuple[LayerRecompute, ...] = ()
    offload: tuple[bool, ...] = ()
    framework: Framework = TRIREME
    adapters_only: bool = False

    def __post_init__(self) -> None:
        self._check_choices()
        num_layers = self.model.num_layers
        if not self.cuts and self.layout.num_stages > 1:
            object.__setattr__(self, "cuts", even_cuts(num_layers, num_stages=self.layout.num_stages))
        if len(self.cuts) != self.layout.num_stages - 1 or not _rise((0, *self.cuts, num_layers)):
            raise LayoutError("workload.bad_cuts", cuts=self.cuts, stages=self.layout.num_stages, layers=num_layers)
        for key in ("recompute", "offload"):
            if len(getattr(self, key)) not in (0, num_layers):
                raise LayoutError("workload.per_layer", key=key, given=len(getattr(self, key)), layers=num_layers)

    def _check_choices(self) -> None:
        for key, choices in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS), ("kernels", KERNEL_SETS)):
            if getattr(self, key) not in choices:
                raise LayoutError("layout.not_choice", key=key, value=getattr(self, key), choices=", ".join(choices))
        for key in ("global_batch_seqs", "seq_len"):
            if getattr(self, key) < 1:
                raise LayoutError("layout.not_whole", key=key, value=getattr(self, key))

    @property
    def has_short_weights(self) -> bool:
        """Whether the weights themselves, and so their gradients, have 16 bits whatever the framework."""
        return self.precision in ("bf16_pure", "bf16_master", "fp16_master")

    @property
    def microbatch_seqs(self) -> int:
        """Sequences in the largest micro-batch of the largest data-parallel rank."""
        per_rank = -(-self.global_batch_seqs // self.layout.dp)
        return -(-per_rank // self.layout.num_microbatches)

    @cached_property
    def microbatch(self) -> MicroBatch:
        """The largest micro-batch, whole (before cp cuts the sequence)."""
        from trireme.graph import MicroBatch

        return MicroBatch(seqs=self.microbatch_seqs, seq_len=self.seq_len, source_len=self.source_len)

    @property
    def step_tokens(self) -> int:
        """Tokens of a step over all ranks."""
        return self.global_batch_seqs * (self.model.fixed_seq_len or self.seq_len)

    def stage_layers(self, stage: int) -> range:
        """Layers of a stage, counted over all stacks."""
        borders = (0, *self.cuts, self.model.num_layers)
        return range(borders[stage], borders[stage + 1])

    def recompute_of(self, layer: int) -> LayerRecompute:
        """What is recomputed of a layer; ``auto`` that nobody resolved keeps everything."""
        if self.recompute:
            return self.recompute[layer]
        return "none" if self.layout.recompute == "auto" else self.layout.recompute

    def offload_of(self, layer: int) -> bool:
        """Whether what a layer keeps waits in host memory."""
        return bool(self.offload) and self.offload[layer]


def even_cuts(num_layers: int, *, num_stages: int) -> tuple[int, ...]:
    """Cut layers as evenly as can be; stages in the middle get what is left over, as head and embedding are heavy."""
    if not 1 <= num_stages <= num_layers:
        raise LayoutError("layout.too_few_layers", layers=num_layers, stages=num_stages)
    each, more = divmod(num_layers, num_stages)
    first = (num_stages - more) // 2
    sizes = [each + (first <= stage < first + more) for stage in range(num_stages)]
    return tuple(sum(sizes[:stage]) for stage in range(1, num_stages))


def _rise(borders: tuple[int, ...]) -> bool:
    return all(low < high for low, high in pairwise(borders))
