"""A published model: its name, the settings that decide its shape, and where they were read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """``config`` holds the keys of the model's config.json that decide its shape."""

    name: str
    config: Mapping[str, Any]
    source: str


def llama_like(
    family: str,
    *,
    layers: int,
    width: int,
    heads: int,
    ffn: int,
    vocab: int,
    context: int,
    kv_heads: int | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Settings under the key names that most decoders share."""
    return {
        "model_type": family,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        **more,
    }


def listed(source: str, **configs: Mapping[str, Any]) -> tuple[Published, ...]:
    """Entries of one source; an underscore in a keyword stands for a hyphen, two for a dot."""
    return tuple(
        Published(name=key.replace("__", ".").replace("_", "-"), config=config, source=source)
        for key, config in configs.items()
    )
