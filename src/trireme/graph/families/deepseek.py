"""DeepSeek-V2, DeepSeek-V3 (and Kimi K2, Moonlight): multi-head latent attention, many experts, shared ones.

The multi-token-prediction layer of DeepSeek-V3 isn't part of transformers' model, nor of this graph.

Source: modeling files of transformers 5.24, models deepseek_v2, deepseek_v3; DeepSeek-AI 2024, "DeepSeek-V2",
section 2.1 (latent attention).
"""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.families.decoder import TrunkNames, decoder_graph, rms
from trireme.graph.families.moe import RouterStyle, dense_then_sparse, moe_feed
from trireme.graph.families.rope import Feed, gated_mlp
from trireme.graph.model import ModelGraph
from trireme.graph.op import AttentionShape
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape
from trireme.graph.tensor import Tensor, stream

_PATH = "self_attn"


def build_deepseek_v2(s: Settings) -> ModelGraph:
    """DeepSeek-V2 and V2-Lite."""
    router = RouterStyle(float32=True, normalised=False)
    return _graph(s, router, "DeepseekV2ForCausalLM", mlp_bias=s.flag("mlp_bias", False), first=0)


def build_deepseek_v3(s: Settings) -> ModelGraph:
    """DeepSeek-V3, R1, Kimi K2, Moonlight."""
    router = RouterStyle(float32=True, num_groups=s.count("n_group", 8), groups_kept=s.count("topk_group", 4))
    return _graph(s, router, "DeepseekV3ForCausalLM", mlp_bias=False, first=3)


def _graph(s: Settings, router: RouterStyle, architecture: str, *, mlp_bias: bool, first: int) -> ModelGraph:
    width, ffn, expert = s.count("hidden_size"), s.count("intermediate_size"), s.count("moe_intermediate_size")
    sparse = moe_feed(
        experts=s.count("n_routed_experts"),
        top_k=s.count("num_experts_per_tok"),
        width=expert,
        router=router,
        shared_width=expert * s.count("n_shared_experts", 2 if first == 0 else 1),
        bias=mlp_bias,
    )
    blocks = dense_then_sparse(
        first=s.count("first_k_dense_replace", first, least=0),
        num_layers=s.layers("num_hidden_layers"),
        dense=_layer(s, width, lambda tape, x: gated_mlp(tape, x, ffn, bias=mlp_bias), kind="dense"),
        sparse=_layer(s, width, sparse, kind="moe"),
    )
    return decoder_graph(
        s,
        blocks,
        default_architecture=architecture,
        names=TrunkNames(),
        width=width,
        norm=rms(),
        max_seq_len=s.count("max_position_embeddings", 2048),
    )


def _layer(s: Settings, width: int, feed: Feed, *, kind: str) -> Block:
    tape, x = Tape(), stream(width)
    branch = latent_attention(tape, tape.rms_norm("input_layernorm", x), s)
    x = tape.add_residual("attention_residual", x, branch)
    tape.add_residual("feed_residual", x, feed(tape, tape.rms_norm("post_attention_layernorm", x)))
    return tape.block(kind)


def latent_attention(tape: Tape, x: Tensor, s: Settings) -> Tensor:
    """Queries, keys and values through narrow latents; the part that is rotated is shared by all heads."""
    heads, bias = s.count("num_attention_heads"), s.flag("attention_bias", False)
    nope, rope, v_width = s.count("qk_nope_head_dim", 128), s.count("qk_rope_head_dim", 64), s.count("v_head_dim", 128)
    latent = s.count("kv_lora_rank", 512)
    q = _queries(tape, x, s, heads * (nope + rope), bias=bias)
    q = tape.rotary(f"{_PATH}.q", q, width=rope)
    compressed = tape.linear(f"{_PATH}.kv_a_proj_with_mqa", x, latent + rope, bias=bias)
    normed = tape.rms_norm(f"{_PATH}.kv_a_layernorm", compressed.view(latent))
    expanded = tape.linear(f"{_PATH}.kv_b_proj", normed, heads * (nope + v_width))
    k = tape.add_residual(f"{_PATH}.k", expanded.view(heads * (nope + rope)), compressed)
    shape = AttentionShape(
        heads=heads, kv_heads=heads, qk_width=nope + rope, v_width=v_width, cache_width=latent + rope
    )
    merged = tape.attention(
        f"{_PATH}.attention",
        q,
        k,
        expanded.view(heads * v_width),
        shape,
        dropout=s.ratio("attention_dropout", 0.0),
        copies_output=True,
    )
    return tape.linear(f"{_PATH}.o_proj", merged, x.width, bias=bias)


def _queries(tape: Tape, x: Tensor, s: Settings, width: int, *, bias: bool) -> Tensor:
    """Straight, or through a latent of their own; an explicit null rank means straight."""
    rank = s.maybe_count("q_lora_rank", 1536)
    if rank is None:
        return tape.linear(f"{_PATH}.q_proj", x, width)
    narrow = tape.linear(f"{_PATH}.q_a_proj", x, rank, bias=bias)
    return tape.linear(f"{_PATH}.q_b_proj", tape.rms_norm(f"{_PATH}.q_a_layernorm", narrow), width)
