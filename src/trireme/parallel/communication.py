"""What a run asks of its wire, and which layouts can give it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trireme.errors import LayoutError
from trireme.parallel.bucket import BUCKET_BYTES
from trireme.parallel.codec import Bf16, Codec, Fp16, Int8, TopK
from trireme.plan import Layout

Compress = Literal["none", "bf16", "fp16", "int8", "powersgd", "topk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """How gradients and weights travel between data-parallel ranks.

    Attributes:
        compress: Code of the gradients, with error feedback.
        warmup_steps: First updates without it.
        rank: Of PowerSGD's factors.
        topk_ratio: Share of the elements that top-k sends.
        layered: Sum inside the node first, then across nodes.
        ranks_per_node: Where nodes end. None: as the launcher says.
        bucket_bytes: Least size of a bucket of whole copies' gradients.
        reduce: Whether ZeRO 2 and 3 sum gradients with every micro-batch, or once a step.
        local_steps: Updates each replica makes by itself between two that all share; 1: all are shared.
        outer: What is made of the replicas' weights then: their mean, or a Nesterov step towards it.
        outer_lr: Of that step.
        outer_momentum: Of that step.
    """

    compress: Compress = "none"
    warmup_steps: int = 0
    rank: int = 4
    topk_ratio: float = 0.01
    layered: bool = False
    ranks_per_node: int | None = None
    bucket_bytes: int = BUCKET_BYTES
    reduce: Literal["auto", "step", "microbatch"] = "auto"
    local_steps: int = 1
    outer: Literal["average", "nesterov"] = "nesterov"
    outer_lr: float = 0.7
    outer_momentum: float = 0.9

    @property
    def is_compressed(self) -> bool:
        """Whether gradients are coded."""
        return self.compress != "none"

    @property
    def is_local(self) -> bool:
        """Whether replicas update by themselves between outer steps."""
        return self.local_steps > 1

    def build_codec(self) -> Codec:
        """Make the code of blocks."""
        match self.compress:
            case "bf16":
                return Bf16()
            case "fp16":
                return Fp16()
            case "int8":
                return Int8()
            case _:
                return TopK(self.topk_ratio)


def check_communication(asked: Communication, layout: Layout) -> None:
    """Refuse what the layout can't give.

    Raises:
        LayoutError: It can't; the message says why and what works.
    """
    if asked.is_compressed:
        _check_compression(asked, layout)
    if asked.layered:
        _check_layers(asked, layout)
    if asked.is_local:
        _check_local(asked, layout)
    if asked.reduce == "microbatch" and (layout.zero < 2 or layout.pp > 1 or layout.vp > 1):
        raise LayoutError("wire.reduce_microbatch", layout=layout)


def _check_compression(asked: Communication, layout: Layout) -> None:
    if layout.zero and layout.ep > 1:
        raise LayoutError("wire.compress_experts", compress=asked.compress, layout=layout)
    if not layout.zero or layout.dp_replicate > 1:
        return
    if layout.zero == 3:
        raise LayoutError("wire.compress_zero3", compress=asked.compress, layout=layout)
    if asked.compress == "powersgd":
        raise LayoutError("wire.compress_matrix", layout=layout)
    if layout.tp > 1 and asked.compress != "bf16":
        raise LayoutError("wire.compress_tensor", compress=asked.compress, layout=layout)


def _check_layers(asked: Communication, layout: Layout) -> None:
    if layout.zero:
        raise LayoutError("wire.layers_zero", layout=layout)
    if layout.ep > 1:
        raise LayoutError("wire.layers_experts", layout=layout)
    if asked.compress == "powersgd":
        raise LayoutError("wire.layers_matrix")


def _check_local(asked: Communication, layout: Layout) -> None:
    if layout.dp_replicate == 1:
        raise LayoutError("wire.local_replicas", steps=asked.local_steps, layout=layout)
    if layout.ep > 1:
        raise LayoutError("wire.local_experts", steps=asked.local_steps, layout=layout)
    if asked.is_compressed or asked.layered:
        raise LayoutError("wire.local_compress", steps=asked.local_steps, compress=asked.compress)
