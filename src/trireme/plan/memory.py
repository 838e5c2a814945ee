"""Peak memory of training on one device, part by part, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from trireme.graph import DecoderShape, count_matmul_params, count_params
from trireme.plan.activation import Kernels, activation_bytes
from trireme.words import say

Policy = Literal["fp32", "bf16", "fp16", "bf16_master", "fp16_master", "bf16_pure", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of one parameter: itself, its gradient, AdamW's two moments, its cast for matrix products."""

    parameter: int
    gradient: int
    optimizer: int
    cast: int


STATE_BYTES: Mapping[Policy, StateBytes] = {
    "fp32": StateBytes(parameter=4, gradient=4, optimizer=8, cast=0),
    "bf16": StateBytes(parameter=4, gradient=4, optimizer=8, cast=2),
    "fp16": StateBytes(parameter=4, gradient=4, optimizer=8, cast=2),
    "bf16_master": StateBytes(parameter=2, gradient=2, optimizer=12, cast=0),
    "fp16_master": StateBytes(parameter=2, gradient=2, optimizer=12, cast=0),
    "bf16_pure": StateBytes(parameter=2, gradient=2, optimizer=4, cast=0),
    "fp8": StateBytes(parameter=4, gradient=4, optimizer=8, cast=2),
}
"""By precision policy.

Source:
    fp32 master weights under mixed precision: Micikevicius et al. 2018, "Mixed Precision Training", section
    3.1; AdamW's two moments in the parameter's format: torch.optim.AdamW.
"""

HOST_ALLOCATOR_RATIO = 0.18
"""What a process on a CPU holds beyond its live tensors, over their size: freed blocks that are kept, holes.

Source:
    Measured, glibc malloc, torch 2.13: 0.10 to 0.28 over seven runs (benchmarks/memory.md). An accelerator's
    own allocator is asked for live bytes, so there it is nothing.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes by part at the moment when most is alive.

    ``moment`` is ``loss`` (all activations are kept, the loss is being differentiated) or ``update``
    (activations are gone, all gradients are there).
    """

    moment: Literal["loss", "update"]
    parts: Mapping[str, int]

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return sum(self.parts.values())

    @property
    def is_whole(self) -> bool:
        """Whether activations are counted; without them it is a lower bound, not a prediction."""
        return "activations" in self.parts or "planned" in self.parts

    def named_parts(self) -> dict[str, int]:
        """Return the parts that are not zero under the names people read."""
        return {say(f"plan.part_{name}"): size for name, size in self.parts.items() if size}


def estimate_memory(
    shape: DecoderShape,
    *,
    policy: Policy,
    microbatch_seqs: int,
    seq_len: int,
    microbatches_per_step: int = 1,
    kernels: Kernels = "host",
    program_bytes: int = 0,
) -> MemoryEstimate:
    """Estimate the peak of training a reference decoder, eager, without recomputation.

    Gradients of earlier micro-batches are alive while a later one runs; a single one meets none.
    ``program_bytes`` is what the process holds without any of this (on a CPU, where the whole process is
    measured; 0 where the allocator is). Short-lived work space inside an operation is not counted.
    """
    state = STATE_BYTES[policy]
    activations = activation_bytes(
        shape,
        compute_bytes=4 if policy == "fp32" else 2,
        stream_bytes=state.parameter,
        kernels=kernels,
    )
    tokens = microbatch_seqs * seq_len
    num_params = count_params(shape).total
    at_loss = {
        "parameters": num_params * state.parameter,
        "gradients": num_params * state.gradient if microbatches_per_step > 1 else 0,
        "optimizer": num_params * state.optimizer,
        "weight_casts": count_matmul_params(shape) * state.cast,
        "activations": tokens * activations.per_token(shape.num_layers),
        "logits": 2 * tokens * activations.logits,
    }
    at_update = {**at_loss, "gradients": num_params * state.gradient, "activations": 0, "logits": 0}
    at_peak, moment = max(((at_loss, "loss"), (at_update, "update")), key=lambda pair: sum(pair[0].values()))
    kept = round(HOST_ALLOCATOR_RATIO * sum(at_peak.values())) if kernels == "host" else 0
    parts = {**at_peak, "allocator": kept, "program": program_bytes}
    return MemoryEstimate(moment="loss" if moment == "loss" else "update", parts=parts)


def estimate_state_memory(num_params: int, *, policy: Policy, program_bytes: int = 0) -> MemoryEstimate:
    """Estimate what any module of ``num_params`` trained parameters needs at least: all but its activations."""
    state = STATE_BYTES[policy]
    parts = {
        "parameters": num_params * state.parameter,
        "gradients": num_params * state.gradient,
        "optimizer": num_params * state.optimizer,
        "weight_casts": num_params * state.cast,
        "program": program_bytes,
    }
    return MemoryEstimate(moment="update", parts=parts)
