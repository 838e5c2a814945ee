"""Gemma 1, 2 and 3 (language part): weights of norms are offsets from one, embeddings are scaled and tied.

Source: modeling files of transformers 5.24, models gemma, gemma2, gemma3.
"""

from __future__ import annotations

from dataclasses import replace

from trireme.graph.families.decoder import TrunkNames, decoder_graph, rms
from trireme.graph.families.rope import (
    LAYER_KINDS,
    AttentionStyle,
    LayerStyle,
    NormNames,
    alternate,
    gated_mlp,
    read_attention,
    rope_layer,
)
from trireme.graph.model import ModelGraph
from trireme.graph.settings import Settings

_FULL, _SLIDING = "full_attention", "sliding_attention"
_SANDWICH = NormNames(
    after_attention="post_attention_layernorm",
    before_feed="pre_feedforward_layernorm",
    after_feed="post_feedforward_layernorm",
)


def _graph(
    s: Settings,
    style: LayerStyle,
    kinds: tuple[str, ...],
    architecture: str,
    *,
    omitted: tuple[str, ...] = (),
    local_tables: bool = False,
) -> ModelGraph:
    width, ffn = s.count("hidden_size"), s.count("intermediate_size")
    function = _function(s)
    window = s.maybe_count("sliding_window", 4096) if _SLIDING in kinds else None
    blocks = {
        kind: rope_layer(
            width,
            read_attention(s, head_width=256, window=window if kind == _SLIDING else None),
            _with_tables(style, kind) if local_tables else style,
            lambda tape, x: gated_mlp(tape, x, ffn, function=function),
            kind="dense",
        )
        for kind in set(kinds)
    }
    return decoder_graph(
        s,
        alternate(kinds, blocks),
        default_architecture=architecture,
        names=TrunkNames(),
        width=width,
        norm=rms("offset"),
        max_seq_len=s.count("max_position_embeddings", 8192),
        tied_by_default=True,
        head_softcap=bool(s.raw("final_logit_softcapping")),
        omitted=omitted,
    )


def _function(s: Settings) -> str:
    """Gemma's activation; its older files name it under ``hidden_act``."""
    return s.function("hidden_activation", s.function("hidden_act", "gelu_pytorch_tanh"))


def _attention(s: Settings, *, softcap: bool = False, qk_norm: str = "") -> AttentionStyle:
    bias = s.flag("attention_bias", False)
    return AttentionStyle(
        qkv_bias=bias,
        out_bias=bias,
        softcap=softcap,
        qk_norm=qk_norm,
        qk_norm_flavour="offset",
        dropout=s.ratio("attention_dropout", 0.0),
    )


def _with_tables(style: LayerStyle, kind: str) -> LayerStyle:
    """Layers with and without a window rotate with bases of their own."""
    return replace(style, attention=replace(style.attention, rotary_tables=f"rotary.{kind}"))


def build_gemma(s: Settings) -> ModelGraph:
    """Gemma 1."""
    kinds = (_FULL,) * s.layers("num_hidden_layers")
    return _graph(s, LayerStyle(attention=_attention(s), norm=rms("offset")), kinds, "GemmaForCausalLM")


def build_gemma2(s: Settings) -> ModelGraph:
    """Gemma 2: every second layer looks at a window, scores and logits are capped by tanh."""
    num_layers = s.layers("num_hidden_layers")
    kinds = s.choices("layer_types", length=num_layers, of=LAYER_KINDS) or tuple(
        _FULL if index % 2 else _SLIDING for index in range(num_layers)
    )
    # A null means no cap; an absent key means the published one.
    softcap = bool(s.values.get("attn_logit_softcapping", 50.0))
    style = LayerStyle(attention=_attention(s, softcap=softcap), norms=_SANDWICH, norm=rms("offset"))
    return _graph(s, style, kinds, "Gemma2ForCausalLM")


def build_gemma3_text(s: Settings) -> ModelGraph:
    """Gemma 3's language model: five layers with a window, then one without; q and k normalised by head."""
    return _gemma3(s, omitted=())


def build_gemma3(s: Settings) -> ModelGraph:
    """The language part of the Gemma 3 that also sees images; its vision tower is left out and named."""
    inner = s.nested("text_config")
    text = Settings({"model_type": "gemma3", **inner.values, "architectures": ["Gemma3ForCausalLM"]}, name=s.name)
    return _gemma3(text, omitted=("model.vision_tower", "model.multi_modal_projector"))


def _gemma3(s: Settings, *, omitted: tuple[str, ...]) -> ModelGraph:
    num_layers = s.layers("num_hidden_layers", 26)
    every = s.count("_sliding_window_pattern", 6, also="sliding_window_pattern")
    kinds = s.choices("layer_types", length=num_layers, of=LAYER_KINDS) or tuple(
        _SLIDING if (index + 1) % every else _FULL for index in range(num_layers)
    )
    style = LayerStyle(attention=_attention(s, qk_norm="head"), norms=_SANDWICH, norm=rms("offset"))
    return _graph(s, style, kinds, "Gemma3ForCausalLM", omitted=omitted, local_tables=True)
