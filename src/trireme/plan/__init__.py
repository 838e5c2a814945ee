"""What a run will need, known before it starts (no torch)."""

from trireme.plan.activation import ActivationBytes, activation_bytes
from trireme.plan.duration import ASSUMED_MFU, estimate_step_s
from trireme.plan.memory import STATE_BYTES, MemoryEstimate, StateBytes, estimate_memory, estimate_state_memory

__all__ = [
    "ASSUMED_MFU",
    "STATE_BYTES",
    "ActivationBytes",
    "MemoryEstimate",
    "StateBytes",
    "activation_bytes",
    "estimate_memory",
    "estimate_state_memory",
    "estimate_step_s",
]
