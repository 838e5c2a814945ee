"""Habits of training frameworks that decide bytes and seconds, as inputs named in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weights = Literal["master", "copy", "none"]
"""``master``: parameters are fp32 and cast for products. ``copy``: they are 16-bit, the optimizer has fp32 copies.
``none``: they are 16-bit and there is nothing else."""

Repeats = Literal["attention", "half", "between"]
"""What selective recomputation repeats: attention's core; every second product and all that lies between them; or
all that lies between products with weights, attention's core among it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What a framework does unasked.

    Attributes:
        name: What people call it.
        weights: Where the fp32 weights of mixed precision are.
        autocasts: fp32 weights are cast product by product, so what runs between layers stays fp32; else whole
            modules are cast, and it is 16-bit.
        float32_gradients: Gradients are kept and reduced in fp32 though products are 16-bit.
        keeps_gradients: Gradient buffers exist all through the step (one flat buffer), not from backward to update.
        overlaps_data: Reduction of gradients (and gathering of shards) hides behind compute.
        overlaps_tensor: Exchanges of tensor parallelism hide behind products.
        overlaps_pipeline: Sends between stages hide behind compute.
        overlaps_experts: Exchanges of expert parallelism hide behind compute.
        cuts_experts: Tensor parallelism cuts each expert's matrices, beside the experts being spread over ranks.
        shards_experts: ZeRO also spreads experts that expert parallelism dealt out, over the ranks that hold the same.
        compiles: Kernels are launched by a compiled program or captured graphs, so the host holds nothing up.
        keeps_sequence_cut: Under sp, what products read is kept as this rank's part and gathered again in backward.
        keeps_both_gradients: Gradients are kept in 16 bits as they come and in fp32 as they add up.
        buffer_bytes: Flat buffers that gradients and gathered parameters pass through.
        float32_loss: The loss keeps its probabilities in fp32 whatever the kernels.
        has_library_attention: Attention comes from the vendor's library, tuned for the newest accelerators.
        repeats: What selective recomputation repeats.
        spreads_vocabulary: Every pipeline rank does its part of embedding and head.
    """

    name: str = "trireme"
    weights: Weights = "master"
    autocasts: bool = True
    float32_gradients: bool = True
    keeps_gradients: bool = False
    overlaps_data: bool = True
    overlaps_tensor: bool = False
    overlaps_pipeline: bool = True
    overlaps_experts: bool = False
    cuts_experts: bool = False
    shards_experts: bool = True
    compiles: bool = False
    has_library_attention: bool = False
    keeps_sequence_cut: bool = False
    keeps_both_gradients: bool = False
    buffer_bytes: int = 0
    float32_loss: bool = False
    repeats: Repeats = "attention"
    spreads_vocabulary: bool = False


TRIREME = Framework(shards_experts=False, repeats="between")
"""Our own habits."""
