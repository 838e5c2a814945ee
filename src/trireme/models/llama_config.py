"""A decoder's ``config.json`` in the words of Hugging Face's Llama, both ways."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trireme.errors import ModelError
from trireme.graph import DecoderShape

MARK = "trireme_decoder"
"""Key in config.json of folders written from a ``Decoder``; such a folder loads back as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of the tokens that begin, end and pad, where there are any."""

    bos_id: int | None = None
    eos_id: int | None = None
    pad_id: int | None = None


def config_of_shape(shape: DecoderShape, *, dtype: str, special: SpecialIds) -> dict[str, Any]:
    """Give the ``config.json`` that makes transformers build the same model.

    The rotary base is written in the old place and the new one, for readers of either age.
    """
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        MARK: 1,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ffn,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": shape.max_seq_len,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "tie_word_embeddings": shape.tie_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": 0.0,
        "dtype": dtype,
        "torch_dtype": dtype,
        **_special(special),
        "use_cache": True,
    }


def generation_config(special: SpecialIds) -> dict[str, Any]:
    """Give the ``generation_config.json`` beside it."""
    return {"_from_model_config": True, **_special(special)}


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``config.json`` of a model folder.

    Raises:
        ModelError: There is no such folder or file, or it is no JSON object.
    """
    if not folder.is_dir():
        raise ModelError("model.folder_missing", path=folder)
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        raise ModelError("model.folder_no_config", path=folder) from None
    except (OSError, ValueError) as error:
        raise ModelError("model.folder_config_bad", path=folder, reason=error) from error
    if not isinstance(config, dict):
        raise ModelError("model.folder_config_bad", path=folder, reason=type(config).__name__)
    return config


def shape_of_config(config: Mapping[str, Any], *, folder: Path) -> DecoderShape:
    """Give the reference decoder's shape for a Llama ``config.json``.

    Raises:
        ModelError: The model has something the reference decoder lacks; the message names it.
    """
    unlike = _unlike_decoder(config)
    if unlike:
        raise ModelError("model.folder_unlike_decoder", path=folder, difference=unlike)
    rope = config.get("rope_parameters") or {}
    try:
        return DecoderShape(
            vocab_size=int(config["vocab_size"]),
            num_layers=int(config["num_hidden_layers"]),
            d_model=int(config["hidden_size"]),
            num_heads=int(config["num_attention_heads"]),
            num_kv_heads=int(config.get("num_key_value_heads") or config["num_attention_heads"]),
            d_ffn=int(config["intermediate_size"]),
            max_seq_len=int(config.get("max_position_embeddings", 2048)),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            tie_embeddings=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError("model.folder_config_bad", path=folder, reason=repr(error)) from error


def _unlike_decoder(config: Mapping[str, Any]) -> str:
    if config.get("model_type") != "llama":
        return f"model_type {config.get('model_type')}"
    if config.get("hidden_act", "silu") != "silu":
        return f"hidden_act {config['hidden_act']}"
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key):
            return key
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind != "default":
        return f"rope_type {kind}"
    heads, width = config.get("num_attention_heads", 1), config.get("hidden_size", 1)
    if config.get("head_dim") not in (None, width // heads):
        return f"head_dim {config['head_dim']}"
    return ""


def _special(special: SpecialIds) -> dict[str, int | None]:
    return {"bos_token_id": special.bos_id, "eos_token_id": special.eos_id, "pad_token_id": special.pad_id}
