"""GLM-4 (two forms) and GLM-4.5: half of each head is rotated, gate and up are one matrix in the dense ones.

Source: modeling files of transformers 5.24, models glm, glm4, glm4_moe.
"""

from __future__ import annotations

from trireme.graph.families.decoder import TrunkNames, decoder_graph, rms
from trireme.graph.families.moe import RouterStyle, dense_then_sparse, moe_feed
from trireme.graph.families.rope import (
    AttentionStyle,
    LayerStyle,
    NormNames,
    fused_gated_mlp,
    gated_mlp,
    read_attention,
    repeat,
    rope_layer,
)
from trireme.graph.model import ModelGraph
from trireme.graph.settings import Settings

_SANDWICH = NormNames(after_attention="post_self_attn_layernorm", after_feed="post_mlp_layernorm")


def build_glm(s: Settings) -> ModelGraph:
    """GLM-4-9B."""
    return _dense(s, NormNames(), "GlmForCausalLM")


def build_glm4(s: Settings) -> ModelGraph:
    """GLM-4-0414: the same with a norm behind each branch too."""
    return _dense(s, _SANDWICH, "Glm4ForCausalLM")


def _attention(s: Settings, *, qkv_bias: bool, qk_norm: str = "", head_width: int, own_tables: bool) -> AttentionStyle:
    return AttentionStyle(
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
        concatenates=True,
        rotary_shared=not own_tables,
        rotary_width=int(head_width * s.rotary_ratio(0.5)),
        dropout=s.ratio("attention_dropout", 0.0),
    )


def _dense(s: Settings, norms: NormNames, architecture: str) -> ModelGraph:
    width, ffn = s.count("hidden_size"), s.count("intermediate_size")
    function = s.function("hidden_act", "silu")
    shape = read_attention(s, head_width=128)
    attention = _attention(s, qkv_bias=s.flag("attention_bias", True), head_width=shape.qk_width, own_tables=True)
    block = rope_layer(
        width,
        shape,
        LayerStyle(attention=attention, norms=norms),
        lambda tape, x: fused_gated_mlp(tape, x, ffn, function=function),
        kind="dense",
    )
    return decoder_graph(
        s,
        repeat(block, s.layers("num_hidden_layers")),
        default_architecture=architecture,
        names=TrunkNames(),
        width=width,
        norm=rms(),
        max_seq_len=s.count("max_position_embeddings", 131072),
    )


def build_glm4_moe(s: Settings) -> ModelGraph:
    """GLM-4.5 and GLM-4.5-Air: the first layers dense, then routed and shared experts."""
    width, ffn, expert = s.count("hidden_size"), s.count("intermediate_size"), s.count("moe_intermediate_size")
    shape = read_attention(s)
    attention = _attention(
        s,
        qkv_bias=s.flag("attention_bias", False),
        qk_norm="head" if s.flag("use_qk_norm", False) else "",
        head_width=shape.qk_width,
        own_tables=False,
    )
    style = LayerStyle(attention=attention)
    router = RouterStyle(float32=True, num_groups=s.count("n_group", 1), groups_kept=s.count("topk_group", 1))
    sparse = moe_feed(
        experts=s.count("n_routed_experts"),
        top_k=s.count("num_experts_per_tok"),
        width=expert,
        router=router,
        shared_width=expert * s.count("n_shared_experts", 1, least=0),
    )
    blocks = dense_then_sparse(
        first=s.count("first_k_dense_replace", 1, least=0),
        num_layers=s.layers("num_hidden_layers"),
        dense=rope_layer(width, shape, style, lambda tape, x: gated_mlp(tape, x, ffn), kind="dense"),
        sparse=rope_layer(width, shape, style, sparse, kind="moe"),
    )
    return decoder_graph(
        s,
        blocks,
        default_architecture="Glm4MoeForCausalLM",
        names=TrunkNames(),
        width=width,
        norm=rms(),
        max_seq_len=s.count("max_position_embeddings", 131072),
    )
