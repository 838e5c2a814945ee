"""Llama 1-3, Mistral, Qwen2, Qwen2.5, Qwen3, OLMo 2 and ERNIE 4.5: the plain pre-norm (or post-norm) decoder.

Source: modeling files of transformers 5.24, models llama, mistral, qwen2, qwen3, olmo2, ernie4_5.
"""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.families.decoder import Norm, TrunkNames, decoder_graph, rms
from trireme.graph.families.rope import (
    LAYER_KINDS,
    AttentionStyle,
    LayerStyle,
    NormNames,
    alternate,
    gated_mlp,
    read_attention,
    repeat,
    rope_layer,
)
from trireme.graph.model import ModelGraph
from trireme.graph.settings import Settings

_FULL, _SLIDING = "full_attention", "sliding_attention"


def _dense(
    s: Settings,
    style: LayerStyle,
    *,
    mlp_bias: bool = False,
    head_width: int | None = None,
    window: int | None = None,
) -> Block:
    width, ffn = s.count("hidden_size"), s.count("intermediate_size")
    function = s.function("hidden_act", "silu")
    shape = read_attention(s, head_width=head_width, window=window)
    return rope_layer(
        width, shape, style, lambda tape, x: gated_mlp(tape, x, ffn, function=function, bias=mlp_bias), kind="dense"
    )


def _graph(
    s: Settings, blocks: list[Block], architecture: str, *, tied: bool = False, norm: Norm | None = None
) -> ModelGraph:
    return decoder_graph(
        s,
        blocks,
        default_architecture=architecture,
        names=TrunkNames(),
        width=s.count("hidden_size"),
        norm=norm or rms(),
        max_seq_len=s.count("max_position_embeddings", 2048),
        tied_by_default=tied,
    )


def build_llama(s: Settings) -> ModelGraph:
    """Llama 1, 2, 3 and whatever says it is one (Yi, DeepSeek-LLM, SmolLM, InternLM exports ...)."""
    bias = s.flag("attention_bias", False)
    style = LayerStyle(
        attention=AttentionStyle(qkv_bias=bias, out_bias=bias, dropout=s.ratio("attention_dropout", 0.0))
    )
    block = _dense(s, style, mlp_bias=s.flag("mlp_bias", False))
    return _graph(s, repeat(block, s.layers("num_hidden_layers")), "LlamaForCausalLM")


def build_mistral(s: Settings) -> ModelGraph:
    """Mistral: Llama with a sliding window on every layer."""
    style = LayerStyle(attention=AttentionStyle(dropout=s.ratio("attention_dropout", 0.0)))
    window = s.maybe_count("sliding_window", 4096)
    block = _dense(s, style, window=window)
    return _graph(s, repeat(block, s.layers("num_hidden_layers")), "MistralForCausalLM")


def qwen_layer_kinds(s: Settings) -> tuple[str, ...]:
    """Full or sliding per layer: as listed, else sliding from ``max_window_layers`` on where windows are in use."""
    num_layers = s.layers("num_hidden_layers")
    listed = s.choices("layer_types", length=num_layers, of=LAYER_KINDS)
    if listed:
        return listed
    if not s.flag("use_sliding_window", False):
        return (_FULL,) * num_layers
    first = s.count("max_window_layers", 28, least=0)
    return tuple(_SLIDING if index >= first else _FULL for index in range(num_layers))


def _qwen(s: Settings, style: LayerStyle, architecture: str, *, head_width: int | None = None) -> ModelGraph:
    window = s.count("sliding_window", 4096) if s.flag("use_sliding_window", False) else None
    blocks = {
        _FULL: _dense(s, style, head_width=head_width),
        _SLIDING: _dense(s, style, head_width=head_width, window=window),
    }
    return _graph(s, alternate(qwen_layer_kinds(s), blocks), architecture)


def build_qwen2(s: Settings) -> ModelGraph:
    """Qwen2 and Qwen2.5: biases on q, k and v."""
    style = LayerStyle(attention=AttentionStyle(qkv_bias=True, dropout=s.ratio("attention_dropout", 0.0)))
    return _qwen(s, style, "Qwen2ForCausalLM")


def build_qwen3(s: Settings) -> ModelGraph:
    """Qwen3: each head of q and k is normalised; heads are 128 wide unless said otherwise."""
    bias = s.flag("attention_bias", False)
    attention = AttentionStyle(qkv_bias=bias, out_bias=bias, qk_norm="head", dropout=s.ratio("attention_dropout", 0.0))
    return _qwen(s, LayerStyle(attention=attention), "Qwen3ForCausalLM", head_width=128)


def build_olmo2(s: Settings) -> ModelGraph:
    """OLMo 2: norms after each branch, q and k normalised over all heads."""
    bias = s.flag("attention_bias", False)
    style = LayerStyle(
        attention=AttentionStyle(
            qkv_bias=bias,
            out_bias=bias,
            qk_norm="whole",
            qk_norm_flavour="float32",
            rotary_float32=True,
            dropout=s.ratio("attention_dropout", 0.0),
        ),
        norms=NormNames(
            before_attention="",
            after_attention="post_attention_layernorm",
            before_feed="",
            after_feed="post_feedforward_layernorm",
        ),
        norm=rms("float32"),
    )
    return _graph(s, repeat(_dense(s, style), s.layers("num_hidden_layers")), "Olmo2ForCausalLM", norm=rms("float32"))


def build_ernie(s: Settings) -> ModelGraph:
    """ERNIE 4.5 dense: rotary positions in float32, tied head, one switch for every bias."""
    bias = s.flag("use_bias", False)
    attention = AttentionStyle(qkv_bias=bias, out_bias=bias, rotary_float32=True, rotary_shared=False)
    block = _dense(s, LayerStyle(attention=attention), mlp_bias=bias, head_width=128)
    return _graph(s, repeat(block, s.layers("num_hidden_layers")), "Ernie4_5ForCausalLM", tied=True)
