"""Words of PaddlePaddle, Hugging Face, Megatron, DeepSpeed and torchtitan for what a layout says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "pp": "pp_degree pp_size pipeline_parallel_degree pipeline_parallel_size pipeline_model_parallel_size",
        "vp": "vpp_degree virtual_pp_degree virtual_pipeline_model_parallel_size virtual_pipeline_parallel_degree",
        "dp": "dp_size data_parallel_size",
        "dp_degree": "dp_degree data_parallel_degree",
        "dp_replicate": "dp_replicate_size data_parallel_replicate_degree",
        "dp_shard": "dp_shard_size data_parallel_shard_degree fsdp_size",
        "tp": "mp mp_degree tp_degree tp_size autotp_size tensor_parallel_degree tensor_parallel_size "
        "tensor_model_parallel_size",
        "cp": "cp_degree cp_size context_parallel_size context_parallel_degree",
        "ep": "ep_degree ep_size expert_parallel_degree expert_parallel_size expert_model_parallel_size",
        "zero": "sharding_stage zero_stage",
        "sp": "sequence_parallel",
        "micro": "microbatches_per_step accumulate_steps gradient_accumulation_steps num_microbatches",
        "schedule": "schedule_mode pipeline_schedule pipeline_parallel_schedule",
    }
)
"""Words that mean the same as one of our keys; ``dp_degree`` is Paddle's, whose meaning depends on the others."""

SCHEDULES: Mapping[str, str] = MappingProxyType(
    {
        "fthenb": "gpipe",
        "afab": "gpipe",
        "interleaved1f1b": "interleaved",
        "vpp": "interleaved",
        "zbh1": "zb",
        "zb1": "zb",
        "zerobubble": "zb",
        "zbvzerobubble": "zbv",
        "zbvpp": "zbv",
    }
)
"""Their names of schedules, folded: small letters, no dashes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a foreign word says, and what it implies where nothing else is said."""

    said: Mapping[str, Any]
    implied: Mapping[str, Any] = field(default_factory=dict)


def _sep(value: Any) -> Reading:
    """Paddle's sep, DeepSpeed's and accelerate's sequence parallelism exchange heads for tokens."""
    return Reading(said={"cp": value}, implied={} if value in (1, "1") else {"cp_kind": "ulysses"})


def _sharding_degree(value: Any) -> Reading:
    """Paddle shards the optimizer alone unless a stage is given."""
    return Reading(said={"dp_shard": value}, implied={"zero": 0 if value in (1, "1") else 1})


def _switch(key: str, value_on: Any) -> Callable[[Any], Reading]:
    def read(value: Any) -> Reading:
        is_on = str(value).lower() in ("true", "1", "on", "yes")
        return Reading(said={key: value_on} if is_on else {})

    return read


def _cp_comm(value: Any) -> Reading:
    kinds = {"p2p": "ring", "a2a": "ulysses", "all_gather": "allgather", "alltoall": "ulysses"}
    return Reading(said={"cp_kind": kinds.get(str(value).lower(), value)})


def _recompute_granularity(value: Any) -> Reading:
    """Both of Paddle's granularities inside a layer recompute part of it only."""
    return Reading(said={"recompute": "selective" if value in ("core_attn", "full_attn") else value})


def _fsdp_strategy(value: Any) -> Reading:
    stages = {"full_shard": 3, "shard_grad_op": 2, "no_shard": 0, "hybrid_shard": 3, "hybrid_shard_zero2": 2}
    return Reading(said={"zero": stages.get(str(value).lower(), value)})


_TRANSLATED: Mapping[str, Callable[[Any], Reading]] = MappingProxyType(
    {
        "sep_degree": _sep,
        "sep_parallel_degree": _sep,
        "sp_size": _sep,
        "sequence_parallel_size": _sep,
        "sharding_degree": _sharding_degree,
        "sharding_parallel_degree": _sharding_degree,
        "use_distributed_optimizer": _switch("zero", 1),
        "use_recompute": _switch("recompute", "full"),
        "gradient_checkpointing": _switch("recompute", "full"),
        "recompute_granularity": _recompute_granularity,
        "cp_comm_type": _cp_comm,
        "fsdp_sharding_strategy": _fsdp_strategy,
    }
)

WRAPPERS = frozenset({"hybrid_configs", "zero_optimization", "parallelism_config"})
"""Blocks whose entries are read as if they stood outside."""

IN_WRAPPER: Mapping[tuple[str, str], str] = MappingProxyType({("zero_optimization", "stage"): "zero_stage"})
"""Words that say something only inside their block."""

_KEY_OF: Mapping[str, str] = MappingProxyType({word: key for key, words in RENAMED.items() for word in words.split()})

FOREIGN_WORDS = frozenset(_KEY_OF) | frozenset(_TRANSLATED)


def read_foreign(word: str, value: Any) -> Reading | None:
    """Say what a foreign word means, or None if it is none."""
    if word in _TRANSLATED:
        return _TRANSLATED[word](value)
    key = _KEY_OF.get(word)
    return None if key is None else Reading(said={key: value})
