"""Mixtral, Qwen-MoE (2 and 3), ERNIE 4.5 MoE and GPT-OSS.

Source: modeling files of transformers 5.24, models mixtral, qwen2_moe, qwen3_moe, ernie4_5_moe, gpt_oss.
"""

from __future__ import annotations

from collections.abc import Sequence

from trireme.graph.block import Block
from trireme.graph.families.decoder import Norm, TrunkNames, decoder_graph, rms
from trireme.graph.families.moe import ExpertStyle, RouterStyle, moe_feed
from trireme.graph.families.rope import (
    LAYER_KINDS,
    AttentionStyle,
    Feed,
    LayerStyle,
    alternate,
    gated_mlp,
    read_attention,
    repeat,
    rope_layer,
)
from trireme.graph.model import ModelGraph
from trireme.graph.op import Param
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape


def _graph(
    s: Settings,
    blocks: Sequence[Block],
    architecture: str,
    *,
    tied: bool = False,
    norm: Norm | None = None,
    head_bias: bool = False,
) -> ModelGraph:
    return decoder_graph(
        s,
        blocks,
        default_architecture=architecture,
        names=TrunkNames(),
        width=s.count("hidden_size"),
        norm=norm or rms(),
        max_seq_len=s.count("max_position_embeddings", 131072),
        tied_by_default=tied,
        head_bias=head_bias,
    )


def build_mixtral(s: Settings) -> ModelGraph:
    """Mixtral: every feed-forward part is a choice of experts."""
    style = LayerStyle(attention=AttentionStyle(dropout=s.ratio("attention_dropout", 0.0)))
    feed = moe_feed(
        experts=s.count("num_local_experts", 8, also="num_experts"),
        top_k=s.count("num_experts_per_tok", 2),
        width=s.count("intermediate_size"),
        router=RouterStyle(),
    )
    shape = read_attention(s, window=s.maybe_count("sliding_window"))
    block = rope_layer(s.count("hidden_size"), shape, style, feed, kind="moe")
    return _graph(s, repeat(block, s.layers("num_hidden_layers")), "MixtralForCausalLM")


def _sparse_layers(s: Settings, num_experts: int) -> tuple[bool, ...]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer has experts, except those listed as dense."""
    step, dense = s.count("decoder_sparse_step", 1), s.indices("mlp_only_layers") or frozenset()
    return tuple(
        index not in dense and num_experts > 0 and (index + 1) % step == 0
        for index in range(s.layers("num_hidden_layers"))
    )


def _qwen_moe(
    s: Settings, style: LayerStyle, feed: Feed, kinds: tuple[str, ...], num_experts: int, architecture: str
) -> ModelGraph:
    width, ffn = s.count("hidden_size"), s.count("intermediate_size")
    window = s.count("sliding_window", 4096) if s.flag("use_sliding_window", False) else None

    def layer(attention: str, sparse: bool) -> Block:
        shape = read_attention(s, window=window if attention == "sliding_attention" else None)
        inner: Feed = feed if sparse else lambda tape, x: gated_mlp(tape, x, ffn)
        return rope_layer(width, shape, style, inner, kind="moe" if sparse else "dense")

    pairs = list(zip(kinds, _sparse_layers(s, num_experts), strict=True))
    blocks = {pair: layer(*pair) for pair in set(pairs)}
    return _graph(s, [blocks[pair] for pair in pairs], architecture)


def build_qwen2_moe(s: Settings) -> ModelGraph:
    """Qwen1.5-MoE and Qwen2-57B: one shared expert behind a gate of its own."""
    experts = s.count("num_experts", 60, least=0)
    style = LayerStyle(
        attention=AttentionStyle(qkv_bias=s.flag("qkv_bias", True), dropout=s.ratio("attention_dropout", 0.0))
    )
    feed = moe_feed(
        experts=experts,
        top_k=s.count("num_experts_per_tok", 4),
        width=s.count("moe_intermediate_size"),
        router=RouterStyle(normalised=s.flag("norm_topk_prob", False), float32_weights=False),
        shared_width=s.count("shared_expert_intermediate_size"),
        shared_name="shared_expert",
        shared_gate=True,
    )
    num_layers = s.layers("num_hidden_layers")
    kinds = s.choices("layer_types", length=num_layers, of=LAYER_KINDS) or _qwen2_moe_kinds(s, num_layers)
    return _qwen_moe(s, style, feed, kinds, experts, "Qwen2MoeForCausalLM")


def _qwen2_moe_kinds(s: Settings, num_layers: int) -> tuple[str, ...]:
    """With windows in use, every second of the first ``max_window_layers`` layers has one."""
    last = s.count("max_window_layers", 28, least=0) if s.flag("use_sliding_window", False) else 0
    return tuple(
        "sliding_attention" if (index + 1) % 2 and index < last else "full_attention" for index in range(num_layers)
    )


def build_qwen3_moe(s: Settings) -> ModelGraph:
    """Qwen3-30B-A3B, Qwen3-235B-A22B: no shared expert, q and k normalised by head."""
    experts = s.count("num_experts", 128, also="num_local_experts", least=0)
    bias = s.flag("attention_bias", False)
    attention = AttentionStyle(qkv_bias=bias, out_bias=bias, qk_norm="head", dropout=s.ratio("attention_dropout", 0.0))
    feed = moe_feed(
        experts=experts,
        top_k=s.count("num_experts_per_tok", 8),
        width=s.count("moe_intermediate_size"),
        router=RouterStyle(normalised=s.flag("norm_topk_prob", False), float32_weights=False),
    )
    kind = "sliding_attention" if s.flag("use_sliding_window", False) else "full_attention"
    kinds = (kind,) * s.layers("num_hidden_layers")
    return _qwen_moe(s, LayerStyle(attention=attention), feed, kinds, experts, "Qwen3MoeForCausalLM")


def build_ernie_moe(s: Settings) -> ModelGraph:
    """ERNIE 4.5 MoE (text): shared experts, a correction bias per expert that is a parameter."""
    width, ffn, experts = s.count("hidden_size"), s.count("intermediate_size"), s.count("moe_num_experts", 64)
    bias, expert = s.flag("use_bias", False), s.count("moe_intermediate_size")
    style = LayerStyle(attention=AttentionStyle(qkv_bias=bias, out_bias=bias, rotary_float32=True, rotary_shared=False))
    correction = Param(name="moe_statics.e_score_correction_bias", shape=(1, experts))
    feed = moe_feed(
        experts=experts,
        top_k=s.count("moe_k", 6),
        width=expert,
        router=RouterStyle(float32=True, float32_weights=False, extra=(correction,)),
        shared_width=expert * s.count("moe_num_shared_experts", 2, least=0),
        bias=bias,
    )
    shape = read_attention(s)
    dense = rope_layer(width, shape, style, lambda tape, x: gated_mlp(tape, x, ffn, bias=bias), kind="dense")
    sparse = rope_layer(width, shape, style, feed, kind="moe")
    blocks = [sparse if chosen else dense for chosen in _ernie_sparse_layers(s)]
    return _graph(s, blocks, "Ernie4_5_MoeForCausalLM", tied=True, head_bias=bias)


def _ernie_sparse_layers(s: Settings) -> list[bool]:
    num_layers = s.layers("num_hidden_layers")
    first, every = s.count("moe_layer_start_index", 1, least=0), s.count("moe_layer_interval", 1)
    last = s.count("moe_layer_end_index", -1, least=-1)
    last = num_layers - 1 if last == -1 else last
    return [(index + 1) % every == 0 and first <= index <= last for index in range(num_layers)]


def build_gpt_oss(s: Settings) -> ModelGraph:
    """GPT-OSS: windows on every second layer, a sink per head, biases everywhere, a clamped gate."""
    width, num_layers = s.count("hidden_size"), s.layers("num_hidden_layers")
    kinds = s.choices("layer_types", length=num_layers, of=LAYER_KINDS) or tuple(
        "full_attention" if index % 2 else "sliding_attention" for index in range(num_layers)
    )
    router = RouterStyle(name="router", bias=True, normalised=False, scores=False, float32_weights=False)
    experts = moe_feed(
        experts=s.count("num_local_experts", also="num_experts"),
        top_k=s.count("num_experts_per_tok", 4),
        width=s.count("intermediate_size"),
        router=router,
        style=ExpertStyle(transposed=True, bias=True, clamped=True),
    )
    blocks = {kind: _gpt_oss_layer(s, width, kind, experts) for kind in sorted(set(kinds))}
    return _graph(s, alternate(kinds, blocks), "GptOssForCausalLM", norm=rms("float32"))


def _gpt_oss_layer(s: Settings, width: int, kind: str, experts: Feed) -> Block:
    window = s.count("sliding_window", 128) if kind == "sliding_attention" else None
    shape = read_attention(s, head_width=64, window=window)
    bias = s.flag("attention_bias", True)
    attention = AttentionStyle(
        qkv_bias=bias,
        out_bias=bias,
        sinks=True,
        upcast=False,
        rotary_width=shape.qk_width // 2,
        dropout=s.ratio("attention_dropout", 0.0),
    )

    layer = rope_layer(width, shape, LayerStyle(attention=attention, norm=rms("float32")), experts, kind="moe")
    sinks = Tape()
    sinks.parameter("self_attn.sinks", (shape.heads,))
    return Block(kind=layer.kind, ops=(*sinks.ops, *layer.ops))
