"""Phi 1, 1.5, 2 (parallel branches, LayerNorm) and Phi 3, 4 (fused projections, RMSNorm).

Source: modeling files of transformers 5.24, models phi, phi3.
"""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.families.decoder import TrunkNames, decoder_graph, layer_norm, rms
from trireme.graph.families.rope import (
    AttentionStyle,
    LayerStyle,
    fused_gated_mlp,
    read_attention,
    repeat,
    rope_attention,
    rope_layer,
)
from trireme.graph.model import ModelGraph
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape
from trireme.graph.tensor import stream


def build_phi(s: Settings) -> ModelGraph:
    """Phi 1, 1.5 and 2."""
    width = s.count("hidden_size")
    return decoder_graph(
        s,
        repeat(_phi_layer(s, width), s.layers("num_hidden_layers")),
        default_architecture="PhiForCausalLM",
        names=TrunkNames(norm="final_layernorm"),
        width=width,
        norm=layer_norm,
        max_seq_len=s.count("max_position_embeddings", 2048),
        head_bias=True,
    )


def _phi_layer(s: Settings, width: int) -> Block:
    tape = Tape()
    shape = read_attention(s)
    dropout = s.ratio("resid_pdrop", 0.0)
    style = AttentionStyle(
        qkv_bias=True,
        out_bias=True,
        out_name="dense",
        concatenates=True,
        qk_norm="layer" if s.flag("qk_layernorm", False) else "",
        rotary_width=int(shape.qk_width * s.rotary_ratio(0.5)),
        dropout=s.ratio("attention_dropout", 0.0),
    )
    x = stream(width)
    normed = tape.layer_norm("input_layernorm", x)
    attended = tape.dropout("attention_dropout", rope_attention(tape, normed, shape, style), ratio=dropout)
    inner = tape.linear("mlp.fc1", normed, s.count("intermediate_size", 4 * width), bias=True)
    active = tape.activation("mlp.activation_fn", inner, s.function("hidden_act", "gelu_new"))
    fed = tape.linear("mlp.fc2", active, width, bias=True)
    tape.add_residual("residual", x, attended, tape.dropout("feed_dropout", fed, ratio=dropout))
    return tape.block("parallel")


def build_phi3(s: Settings) -> ModelGraph:
    """Phi 3, 3.5 and 4."""
    width, ffn = s.count("hidden_size"), s.count("intermediate_size")
    shape = read_attention(s, window=s.maybe_count("sliding_window"))
    attention = AttentionStyle(
        fused_qkv=True,
        concatenates=True,
        rotary_width=int(shape.qk_width * s.rotary_ratio(1.0)),
        dropout=s.ratio("attention_dropout", 0.0),
    )
    style = LayerStyle(attention=attention, dropout=s.ratio("resid_pdrop", 0.0))
    function = s.function("hidden_act", "silu")
    block = rope_layer(
        width, shape, style, lambda tape, x: fused_gated_mlp(tape, x, ffn, function=function), kind="dense"
    )
    return decoder_graph(
        s,
        repeat(block, s.layers("num_hidden_layers")),
        default_architecture="Phi3ForCausalLM",
        names=TrunkNames(),
        width=width,
        norm=rms(),
        max_seq_len=s.count("max_position_embeddings", 4096),
    )
