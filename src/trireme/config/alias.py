"""Words of PaddlePaddle, Hugging Face, DeepSpeed and Megatron, and what they are here. The only such table.

Three kinds. A word that means the same is read as our key, and said. A word that needs others to be
understood (a batch per device, a level of fp16) is kept for ``derive.py``. A word that means something
else is refused with what to use instead.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

RENAMED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "run.dir": ("output_dir",),
        "run.seed": ("seed",),
        "layout.tp": ("mp_degree", "tensor_parallel_degree", "tensor_model_parallel_size", "tp_degree"),
        "layout.pp": ("pp_degree", "pipeline_parallel_degree", "pipeline_model_parallel_size"),
        "layout.vp": ("vpp_degree", "virtual_pp_degree", "virtual_pipeline_model_parallel_size"),
        "layout.dp_shard": ("data_parallel_shard_degree",),
        "layout.dp_replicate": ("data_parallel_replicate_degree",),
        "layout.cp": ("context_parallel_size", "context_parallel_degree"),
        "layout.zero": ("zero_stage", "sharding_stage"),
        "layout.sp": ("sequence_parallel",),
        "layout.ep": ("ep_degree", "expert_model_parallel_size", "expert_parallel_degree"),
        "model.path": ("model_name_or_path",),
        "model.vocab_size": ("vocab_size",),
        "model.num_layers": ("num_hidden_layers", "num_layers"),
        "model.d_model": ("hidden_size",),
        "model.num_heads": ("num_attention_heads",),
        "model.num_kv_heads": ("num_key_value_heads", "num_query_groups"),
        "model.d_ffn": ("intermediate_size", "ffn_hidden_size"),
        "model.max_seq_len": ("max_position_embeddings",),
        "model.rope_theta": ("rope_theta", "rotary_base"),
        "model.norm_eps": ("rms_norm_eps", "norm_epsilon"),
        "model.tie_embeddings": ("tie_word_embeddings",),
        "model.dropout": ("resid_pdrop",),
        "data.sources": ("train_file", "train_files", "train_dataset_path"),
        "data.eval_sources": ("validation_file", "validation_files", "eval_dataset_path"),
        "data.tokenizer": ("tokenizer_name_or_path", "tokenizer_name"),
        "data.seq_len": ("max_seq_length", "max_seq_len", "seq_length", "sequence_length", "block_size"),
        "data.workers": ("dataloader_num_workers", "num_workers"),
        "data.prefetch": ("dataloader_prefetch_factor",),
        "data.build_workers": ("preprocessing_num_workers",),
        "train.epochs": ("num_train_epochs", "train_epochs"),
        "train.max_tokens": ("train_tokens",),
        "train.global_batch_seqs": ("train_batch_size", "global_batch_size"),
        "train.lr": ("learning_rate", "lr"),
        "train.min_lr_ratio": ("min_lr_ratio", "min_lr_rate"),
        "train.warmup_steps": ("warmup_steps", "lr_warmup_iters"),
        "train.beta1": ("adam_beta1",),
        "train.beta2": ("adam_beta2",),
        "train.eps": ("adam_epsilon", "adam_eps"),
        "train.weight_decay": ("weight_decay",),
        "train.eval_every_steps": ("eval_steps", "eval_interval"),
        "precision.init_loss_scale": ("init_loss_scaling", "initial_loss_scale", "scale_loss"),
        "precision.loss_scale_growth_steps": ("loss_scale_window", "incr_every_n_steps"),
        "precision.tf32": ("tf32", "allow_tf32"),
        "checkpoint.every_steps": ("save_steps", "save_interval"),
        "checkpoint.keep_last": ("save_total_limit",),
        "checkpoint.background": ("async", "async_save", "use_async_save", "async_checkpoint"),
        "observe.every_steps": ("logging_steps", "log_interval"),
        "communication.bucket_mib": ("bucket_cap_mb", "fuse_grad_size_in_MB"),
        "communication.local_steps": ("local_sgd_steps",),
    }
)

JOINT: Mapping[str, str] = MappingProxyType(
    {
        "per_device_train_batch_size": "train",
        "train_micro_batch_size_per_gpu": "train",
        "micro_batch_size": "train",
        "gradient_accumulation_steps": "train",
        "dp_degree": "layout",
        "data_parallel_degree": "layout",
        "warmup_ratio": "train",
        "lr_warmup_fraction": "train",
        "min_lr": "train",
        "bf16": "precision",
        "fp16": "precision",
        "fp16_opt_level": "precision",
        "bf16_opt_level": "precision",
        "amp_level": "precision",
        "use_master_weight": "precision",
        "master_weight": "precision",
        "multi_precision": "precision",
    }
)
"""Words that are understood together with others (``derive.py``), and the section they may also stand in."""

REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "per_device_eval_batch_size": "eval_batch",
        "per_gpu_train_batch_size": "per_gpu_batch",
        "batch_size": "bare_batch",
        "lr_scheduler_kwargs": "scheduler_kwargs",
        "lr_decay_iters": "decay_iters",
        "lr_decay_steps": "decay_iters",
        "optim": "optim",
        "optimizer": "optim",
        "scheduler": "scheduler_block",
        "zero_optimization": "zero",
        "sharding": "zero",
        "eval_iters": "eval_iters",
        "max_eval_samples": "eval_iters",
        "train_samples": "train_samples",
        "eval_strategy": "strategy",
        "evaluation_strategy": "strategy",
        "save_strategy": "strategy",
        "logging_strategy": "strategy",
        "load_best_model_at_end": "best",
        "resume_from_checkpoint": "resume",
        "overwrite_output_dir": "overwrite",
        "do_train": "verbs",
        "do_eval": "verbs",
        "do_predict": "verbs",
        "report_to": "report_to",
        "use_cpu": "device",
        "no_cuda": "device",
        "device": "device",
        "localsgd": "localsgd",
        "adaptive_localsgd": "localsgd",
        "input_dir": "preprocessed",
        "data_path": "preprocessed",
        "dataset_name": "hub_dataset",
        "text_column_name": "text_field",
        "hidden_dropout": "hidden_dropout",
        "hidden_dropout_prob": "hidden_dropout",
        "attention_dropout": "attention_dropout",
        "attention_dropout_prob": "attention_dropout",
    }
)
"""Words that are not what any key here is; the value names the sentence ``config.not_<value>``."""


class UnreadableError(Exception):
    """A word's value has no meaning here; carries the catalogue name of the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a word says: the value of its key, and values it implies for keys nobody set."""

    value: Any
    implied: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """One foreign word, the dotted key it is read as, and how its value is read."""

    word: str
    key: str
    read: Callable[[Any], Reading] = lambda value: Reading(value=value)

    @property
    def section(self) -> str:
        """Section it may stand in, besides the top level."""
        return self.key.partition(".")[0]


def _clip(value: Any) -> Reading:
    """0 means no clipping in Hugging Face, PaddlePaddle and Megatron; here that is null."""
    is_zero = isinstance(value, (int, float)) and not isinstance(value, bool) and value == 0
    return Reading(value=None if is_zero else value)


def _max_steps(value: Any) -> Reading:
    """-1 means not limited by steps."""
    return Reading(value=None if value == -1 else value)


def _schedule(value: Any) -> Reading:
    """Their linear and cosine end at 0, and their ``constant`` has no warm-up; ours by default do not and has."""
    known = {
        "constant": Reading(value="constant", implied={"train.warmup_steps": 0}),
        "constant_with_warmup": Reading(value="constant"),
        "linear": Reading(value="linear", implied={"train.min_lr_ratio": 0.0}),
        "cosine": Reading(value="cosine", implied={"train.min_lr_ratio": 0.0}),
        "cosine_with_min_lr": Reading(value="cosine"),
        "warmup_stable_decay": Reading(value="wsd", implied={"train.min_lr_ratio": 0.0}),
        "wsd": Reading(value="wsd", implied={"train.min_lr_ratio": 0.0}),
    }
    reading = known.get(str(value).lower())
    if reading is None:
        raise UnreadableError("schedule")
    return reading


def _compile(value: Any) -> Reading:
    return Reading(value={True: "on", False: "off"}.get(value, value) if isinstance(value, bool) else value)


def _untie(value: Any) -> Reading:
    return Reading(value=not value if isinstance(value, bool) else value)


def _loss_scale_power(value: Any) -> Reading:
    return Reading(value=power_of_two(value) if isinstance(value, int) and not isinstance(value, bool) else value)


def _sep(value: Any) -> Reading:
    """Paddle's sep exchanges heads for positions."""
    return Reading(value=value, implied={"layout.cp_kind": "ulysses"} if value not in (1, "1") else {})


def _sharding_degree(value: Any) -> Reading:
    """Paddle shards the optimizer alone unless a stage is given."""
    return Reading(value=value, implied={"layout.zero": 1} if value not in (1, "1") else {})


def _recompute(value: Any) -> Reading:
    """On or off elsewhere; the command line has words where YAML has truth values."""
    return Reading(value={"true": "full", "false": "none"}.get(str(value).lower(), value))


def _granularity(value: Any) -> Reading:
    """Paddle's granularities inside a layer recompute part of it."""
    return Reading(value="selective" if value in ("core_attn", "full_attn") else value)


def power_of_two(exponent: int) -> float:
    """Return 2 ** exponent; infinity, which no key takes, where a float ends."""
    return 2.0**exponent if exponent < sys.float_info.max_exp else math.inf


def _comm_hook(value: Any) -> Reading:
    """Hugging Face's and torch's names of the same codes."""
    known = {"no": "none", "bf16_compress": "bf16", "fp16_compress": "fp16", "power_sgd": "powersgd"}
    return Reading(value=known.get(str(value).lower(), value))


def _coded(code: str, **implied: Any) -> Callable[[Any], Reading]:
    """A switch that turns one code on."""

    def read(value: Any) -> Reading:
        said = {"true": code, "false": "none"}.get(str(value).lower(), value)
        return Reading(value=said, implied=implied if said == code else {})

    return read


_TRANSLATED: Mapping[str, tuple[str, Callable[[Any], Reading]]] = MappingProxyType(
    {
        "max_steps": ("train.max_steps", _max_steps),
        "train_iters": ("train.max_steps", _max_steps),
        "max_grad_norm": ("train.clip_grad_norm", _clip),
        "clip_grad": ("train.clip_grad_norm", _clip),
        "gradient_clipping": ("train.clip_grad_norm", _clip),
        "lr_scheduler_type": ("train.schedule", _schedule),
        "lr_decay_style": ("train.schedule", _schedule),
        "torch_compile": ("train.compile", _compile),
        "sep_degree": ("layout.cp", _sep),
        "sep_parallel_degree": ("layout.cp", _sep),
        "sharding_degree": ("layout.dp_shard", _sharding_degree),
        "sharding_parallel_degree": ("layout.dp_shard", _sharding_degree),
        "gradient_checkpointing": ("recompute.mode", _recompute),
        "recompute_granularity": ("recompute.mode", _granularity),
        "untie_embeddings_and_output_weights": ("model.tie_embeddings", _untie),
        "fp16_allreduce": ("communication.compress", _coded("fp16")),
        "grad_reduce_in_bf16": ("communication.compress", _coded("bf16")),
        "dgc": ("communication.compress", _coded("topk", **{"communication.topk_ratio": 0.001})),
        "ddp_comm_hook": ("communication.compress", _comm_hook),
        "initial_scale_power": ("precision.init_loss_scale", _loss_scale_power),
    }
)

ALIASES: Mapping[str, Alias] = MappingProxyType(
    {word: Alias(word=word, key=key) for key, words in RENAMED.items() for word in words}
    | {word: Alias(word=word, key=key, read=read) for word, (key, read) in _TRANSLATED.items()}
)
"""Every word that is read as one key."""

JOINT_MEANING: Mapping[str, str] = MappingProxyType(
    {
        "per_device_train_batch_size": "train.microbatch_seqs",
        "train_micro_batch_size_per_gpu": "train.microbatch_seqs",
        "micro_batch_size": "train.microbatch_seqs",
        "gradient_accumulation_steps": "train.global_batch_seqs",
        "dp_degree": "layout.dp",
        "data_parallel_degree": "layout.dp",
        "warmup_ratio": "train.warmup_steps",
        "lr_warmup_fraction": "train.warmup_steps",
        "min_lr": "train.min_lr_ratio",
        "bf16": "precision.policy",
        "fp16": "precision.policy",
        "fp16_opt_level": "precision.policy",
        "bf16_opt_level": "precision.policy",
        "amp_level": "precision.policy",
        "use_master_weight": "precision.policy",
        "master_weight": "precision.policy",
        "multi_precision": "precision.policy",
    }
)
"""The key that each joint word decides."""


def known_words() -> dict[str, str]:
    """Return every foreign word that is read, with the dotted key it decides."""
    return {word: alias.key for word, alias in ALIASES.items()} | dict(JOINT_MEANING)
