"""Section ``communication``: how gradients and weights travel between ranks."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trireme.config.schema import Number, Section, Whole


class CommunicationSection(Section):
    """How gradients and weights travel between data-parallel ranks; a bare text stands for {compress: text}."""

    compress: Literal["none", "bf16", "fp16", "int8", "powersgd", "topk"] = Field(
        "none", description="Code of the gradients on their way; what it leaves out is added to the next ones."
    )
    warmup_steps: Whole = Field(0, ge=0, description="First steps without compression.")
    powersgd_rank: Whole = Field(4, ge=1, le=256, description="Columns of powersgd's two factors of a matrix.")
    topk_ratio: Number = Field(0.01, gt=0, le=1, description="Share of a gradient's elements that topk sends.")
    layered: bool = Field(False, description="Sum gradients inside each node first, then across nodes.")
    ranks_per_node: Whole | None = Field(
        None, ge=1, description="Where nodes end, for layered and the count of bytes. Default: as the launcher says."
    )
    bucket_mib: Number = Field(25.0, gt=0, le=65536, description="Least size of a message of whole copies' gradients.")
    reduce: Literal["auto", "step", "microbatch"] = Field(
        "auto",
        description="ZeRO 2 and 3 sum gradients once a step (fewer bytes) or with every micro-batch (less memory); "
        "auto: with every micro-batch.",
    )
    local_steps: Whole = Field(
        1, ge=1, description="Steps that replicas (dp_replicate) train by themselves before their weights meet."
    )
    outer: Literal["average", "nesterov"] = Field(
        "nesterov", description="What replicas make of their weights when they meet: the mean, or a step towards it."
    )
    outer_lr: Number = Field(0.7, gt=0, le=2, description="Rate of that step.")
    outer_momentum: Number = Field(0.9, ge=0, lt=1, description="Nesterov momentum of that step.")
