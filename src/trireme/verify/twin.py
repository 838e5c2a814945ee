"""A small twin of a big model: the same graph, the smallest sizes that keep what makes its layers differ.

Kept are ratios and switches: query heads per key head, whether heads fill the width, which layers are of which kind,
tied matrices, biases, the experts chosen per token and their groups. Lengths shrink.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trireme.errors import ModelError, TriremeError
from trireme.graph import find_graph

_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_WIDTH = ("hidden_size", "n_embd", "d_model", "word_embed_proj_dim")
_FFN = (
    "intermediate_size",
    "ffn_dim",
    "n_inner",
    "d_ff",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "encoder_ffn_dim",
    "decoder_ffn_dim",
    "expert_ffn_hidden_size",
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "moe_k", "top_k", "moe_topk")

_HEAD_WIDTH = 8
"""Even, for rotary positions turn pairs; and small."""

_MAX_KV_HEADS = 2
_MAX_GROUP = 8
"""Query heads per key head are kept up to this."""

_MIN_LAYERS = 4
"""So that four pipeline stages have a layer each."""

_VOCAB = 97
_POSITIONS = 128
_NUM_EXPERTS, _NUM_CHOSEN = 8, 2

_SMALL: dict[str, int] = {
    "max_position_embeddings": _POSITIONS,
    "n_positions": _POSITIONS,
    "sliding_window": 8,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": _HEAD_WIDTH,
    "qk_nope_head_dim": _HEAD_WIDTH,
    "v_head_dim": _HEAD_WIDTH,
    "d_kv": _HEAD_WIDTH,
    "n_group": 2,
    "topk_group": 1,
    "image_size": 12,
    "patch_size": 4,
    "type_vocab_size": 2,
}
"""Lengths that take this value where they are larger."""


def shrink_config(config: Any, *, path: Path) -> Any:
    """Give a copy of a Hugging Face config for a small model with the same graph.

    Raises:
        ModelError: It names no number of layers, heads or widths that are known here.
    """
    config = copy.deepcopy(getattr(config, "text_config", None) or config)
    layers, heads, widths = (_present(config, names) for names in (_LAYERS, _HEADS, _WIDTH))
    if not (layers and heads and widths):
        raise ModelError("verify.cant_shrink", path=path, kind=type(config).__name__)
    _shrink_layers(config, layers, path=path)
    _shrink_heads(config, heads, widths)
    _shrink_experts(config)
    for name, value in _SMALL.items():
        _lower(config, name, value)
    _derive_latent_heads(config)
    _shrink_vocabulary(config)
    return config


def _shrink_layers(config: Any, names: list[str], *, path: Path) -> None:
    """Keep the first layers up to where every kind has been seen."""
    needed = max(_MIN_LAYERS, _layers_to_see_every_kind(config, path))
    kinds = getattr(config, "layer_types", None)
    for name in names:
        _lower(config, name, needed)
    if isinstance(kinds, list):
        config.layer_types = kinds[:needed]
    for name in ("mlp_only_layers", "global_attn_layers", "no_rope_layers"):
        given = getattr(config, name, None)
        if isinstance(given, list):
            keeps_place = len(given) > needed and set(given) <= {0, 1}
            setattr(config, name, given[:needed] if keeps_place else [each for each in given if each < needed])
    for name in ("moe_layer_end_index", "max_window_layers"):
        if isinstance(getattr(config, name, None), int):
            setattr(config, name, min(getattr(config, name), needed - 1))


def _layers_to_see_every_kind(config: Any, path: Path) -> int:
    firsts: list[int] = [_first_of_last_kind(getattr(config, "layer_types", None) or [])]
    try:
        graph = find_graph(str(path if path.suffix == ".json" else path / "config.json"))
        firsts += [_first_of_last_kind([block.kind for block in stack.blocks]) for stack in graph.stacks]
    except TriremeError:
        pass  # a family without a graph: what its config lists must do
    for name in ("first_k_dense_replace", "moe_layer_start_index"):
        dense = getattr(config, name, None)
        if isinstance(dense, int):
            firsts.append(min(dense, 3) + 1)
            setattr(config, name, min(dense, 3))
    return max(firsts)


def _first_of_last_kind(kinds: list[Any]) -> int:
    """How many layers from the front it takes to have met every kind."""
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)


def _shrink_heads(config: Any, heads: list[str], widths: list[str]) -> None:
    count = getattr(config, heads[0])
    kv_names = _present(config, _KV_HEADS)
    kv_count = min(getattr(config, kv_names[0]) if kv_names else count, count)
    group = min(max(1, count // kv_count), _MAX_GROUP)
    kv_small = min(kv_count, _MAX_KV_HEADS if group > 1 else 4)
    small = group * kv_small
    for name in heads:
        setattr(config, name, small)
    for name in kv_names:
        setattr(config, name, kv_small)
    width = _HEAD_WIDTH * small
    head_dim = getattr(config, "head_dim", None)
    if isinstance(head_dim, int):
        fills = head_dim * count == getattr(config, widths[0])
        config.head_dim = _HEAD_WIDTH if fills else 2 * _HEAD_WIDTH
    for name in widths:
        setattr(config, name, width)
    for name in _present(config, _FFN):
        wide = getattr(config, name) > getattr(config, "moe_intermediate_size", 0) or not name.startswith("moe")
        setattr(config, name, 2 * width if wide else width)


def _derive_latent_heads(config: Any) -> None:
    """Latent attention derives two widths of a head when its config is made, which must follow the small ones."""
    if isinstance(getattr(config, "qk_rope_head_dim", None), int):
        config.head_dim = config.qk_rope_head_dim
        config.qk_head_dim = config.qk_nope_head_dim + config.qk_rope_head_dim


def _shrink_experts(config: Any) -> None:
    for name in _present(config, _EXPERTS):
        _lower(config, name, _NUM_EXPERTS)
    for name in _present(config, _CHOSEN):
        _lower(config, name, _NUM_CHOSEN)


def _shrink_vocabulary(config: Any) -> None:
    _lower(config, "vocab_size", _VOCAB)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id"):
        given = getattr(config, name, None)
        if (isinstance(given, int) and given >= _VOCAB) or isinstance(given, list):
            setattr(config, name, 1)


def _lower(config: Any, name: str, value: int) -> None:
    given = getattr(config, name, None)
    if isinstance(given, int) and not isinstance(given, bool) and given > value:
        setattr(config, name, value)


def _present(
    config: Any, names: tuple[str, ...], known: Callable[[Any], bool] = lambda v: isinstance(v, int)
) -> list[str]:
    return [name for name in names if known(getattr(config, name, None))]
