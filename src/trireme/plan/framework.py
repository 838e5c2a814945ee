"""Habits of training frameworks that decide bytes and seconds, as inputs named in a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Weights = Literal["master", "copy"]
"""``master``: parameters are fp32 and cast for products. ``copy``: they are 16-bit, the optimizer has fp32 copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """What a framework does unasked.

    Attributes:
        name: What people call it.
        weights: Where the fp32 weights of mixed precision are.
        float32_gradients: Gradients are kept and reduced in fp32 though products are 16-bit.
        keeps_gradients: Gradient buffers exist all through the step (one flat buffer), not from backward to update.
        overlaps_data: Reduction of gradients (and gathering of shards) hides behind compute.
        overlaps_tensor: Exchanges of tensor parallelism hide behind products.
        overlaps_pipeline: Sends between stages hide behind compute.
    """

    name: str = "trireme"
    weights: Weights = "master"
    float32_gradients: bool = True
    keeps_gradients: bool = False
    overlaps_data: bool = True
    overlaps_tensor: bool = False
    overlaps_pipeline: bool = True


TRIREME = Framework()
"""Our own habits."""
