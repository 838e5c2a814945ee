"""How long the optimizer's update takes: it reads and writes all state once, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from trireme.plan.time_stage import Stage

if TYPE_CHECKING:
    from trireme.plan.time_rates import Rates
    from trireme.plan.workload import Workload

_MOVED_BYTES: Mapping[str, int] = MappingProxyType(
    {
        "adamw": 34,
        "adamw_bf16": 26,
        "sgd": 18,
        "momentum": 26,
        "adafactor": 24,
        "lion": 26,
        "muon": 42,
    }
)
"""Bytes moved for a parameter: the gradient's norm is taken (4), gradient, weight and moments are read, weight,
moments and the 16-bit copy are written; Muon's few products more, counted as passes."""


def update_s(stages: list[Stage], *, workload: Workload, rates: Rates) -> float:
    """Give the time of the update on a rank that holds these stages."""
    if workload.adapters_only:
        return 0.0
    layout = workload.layout
    dense = sum(stage.params - stage.expert_params for stage in stages)
    experts = sum(stage.expert_params for stage in stages)
    if layout.zero:
        shards = layout.dp_shard * layout.cp
        dense /= shards
        experts /= max(1.0, shards * layout.tp / layout.ep)
    moved = _MOVED_BYTES[workload.optimizer] * (dense + experts)
    return rates.fused_traffic * moved / workload.cluster.accelerator.memory_bytes_per_s
