"""GPT-2 (and GPT-3's published shapes), OPT, BLOOM and GPT-NeoX: LayerNorm and a plain feed-forward part.

Source: modeling files of transformers 5.24, models gpt2, opt, bloom, gpt_neox.
"""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.families.decoder import TrunkNames, decoder_graph, layer_norm
from trireme.graph.families.rope import repeat
from trireme.graph.model import ModelGraph
from trireme.graph.op import AttentionShape
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape
from trireme.graph.tensor import Tensor, stream


def plain_heads(s: Settings, *, width: int, heads: int, causal: bool = True) -> AttentionShape:
    """As many key/value heads as query heads, together as wide as the model."""
    head_width = s.divides(heads, width, part_key="num_attention_heads", whole_key="hidden_size")
    return AttentionShape(
        heads=heads,
        kv_heads=heads,
        qk_width=head_width,
        v_width=head_width,
        causal=causal,
        cache_width=2 * width if causal else 0,
    )


def build_gpt2(s: Settings) -> ModelGraph:
    """GPT-2 and models published in its form."""
    width = s.count("n_embd", also="hidden_size")
    positions = s.count("n_positions", 1024, also="max_position_embeddings")
    names = TrunkNames(root="transformer", embedding="wte", layers="h", norm="ln_f")

    def before(prefix: str) -> Block:
        tape = Tape()
        tokens = tape.embedding(f"{prefix}wte", rows=s.count("vocab_size"), width=width)
        places = tape.embedding(f"{prefix}wpe", rows=positions, width=width, per="positions")
        tape.dropout(f"{prefix}drop", tape.add_residual("embedded", tokens, places), ratio=s.ratio("embd_pdrop", 0.1))
        return tape.block("embedding")

    return decoder_graph(
        s,
        repeat(_gpt2_layer(s, width), s.layers("n_layer", also="num_hidden_layers")),
        default_architecture="GPT2LMHeadModel",
        names=names,
        width=width,
        norm=layer_norm,
        max_seq_len=positions,
        before=before,
        tied_by_default=True,
    )


def _gpt2_layer(s: Settings, width: int) -> Block:
    tape, x = Tape(), stream(width)
    dropout = s.ratio("resid_pdrop", 0.1)
    shape = plain_heads(s, width=width, heads=s.count("n_head", also="num_attention_heads"))
    qkv = tape.linear("attn.c_attn", tape.layer_norm("ln_1", x), 3 * width, bias=True, transposed=True)
    q, k, v = (qkv.view(width) for _ in range(3))
    merged = tape.attention("attn", q, k, v, shape, upcast=False, dropout=s.ratio("attn_pdrop", 0.1))
    branch = tape.linear("attn.c_proj", merged, width, bias=True, transposed=True)
    x = tape.add_residual("attn_residual", x, tape.dropout("attn.resid_dropout", branch, ratio=dropout))
    inner = s.maybe_count("n_inner") or 4 * width
    hidden = tape.linear("mlp.c_fc", tape.layer_norm("ln_2", x), inner, bias=True, transposed=True)
    active = tape.activation("mlp.act", hidden, s.function("activation_function", "gelu_new"))
    branch = tape.linear("mlp.c_proj", active, width, bias=True, transposed=True)
    tape.add_residual("mlp_residual", x, tape.dropout("mlp.dropout", branch, ratio=dropout))
    return tape.block("dense")


def build_opt(s: Settings) -> ModelGraph:
    """OPT; its smallest models project a narrower embedding, and the 350M one normalises after the branch."""
    width = s.count("hidden_size")
    positions = s.count("max_position_embeddings", 2048)
    narrow = s.count("word_embed_proj_dim", width)
    before_norm = s.flag("do_layer_norm_before", True)

    def before(prefix: str) -> Block:
        tape = Tape()
        tokens = tape.embedding(f"{prefix}embed_tokens", rows=s.count("vocab_size"), width=narrow)
        # Two rows more than positions: the published weights keep an offset of two.
        places = tape.embedding(f"{prefix}embed_positions", rows=positions + 2, width=width)
        if narrow != width:
            tokens = tape.linear(f"{prefix}project_in", tokens, width)
        tape.add_residual("embedded", tokens, places)
        return tape.block("embedding")

    def after(tape: Tape, name: str, x: Tensor) -> Tensor:
        prefix = name.removesuffix("final_layer_norm")
        if before_norm and not s.flag("_remove_final_layer_norm", False):
            x = tape.layer_norm(name, x, affine=s.flag("layer_norm_elementwise_affine", True))
        return tape.linear(f"{prefix}project_out", x, narrow) if narrow != width else x

    return decoder_graph(
        s,
        repeat(_opt_layer(s, width), s.layers("num_hidden_layers")),
        default_architecture="OPTForCausalLM",
        names=TrunkNames(root="model.decoder", bare_root="decoder.", norm="final_layer_norm"),
        width=width,
        head_width=narrow,
        norm=after,
        max_seq_len=positions,
        before=before,
        tied_by_default=True,
    )


def _opt_layer(s: Settings, width: int) -> Block:
    tape, x = Tape(), stream(width)
    bias, affine = s.flag("enable_bias", True), s.flag("layer_norm_elementwise_affine", True)
    first, dropout = s.flag("do_layer_norm_before", True), s.ratio("dropout", 0.1)
    shape = plain_heads(s, width=width, heads=s.count("num_attention_heads"))
    normed = tape.layer_norm("self_attn_layer_norm", x, affine=affine) if first else x
    q, k, v = (tape.linear(f"self_attn.{part}_proj", normed, width, bias=bias) for part in "qkv")
    merged = tape.attention("self_attn", q, k, v, shape, dropout=s.ratio("attention_dropout", 0.0))
    branch = tape.linear("self_attn.out_proj", merged, width, bias=bias)
    x = tape.add_residual("attention_residual", x, tape.dropout("attention_dropout", branch, ratio=dropout))
    if not first:
        x = tape.layer_norm("self_attn_layer_norm", x, affine=affine)
    normed = tape.layer_norm("final_layer_norm", x, affine=affine) if first else x
    hidden = tape.linear("fc1", normed, s.count("ffn_dim"), bias=bias)
    branch = tape.linear(
        "fc2", tape.activation("act", hidden, s.function("activation_function", "relu")), width, bias=bias
    )
    x = tape.add_residual("feed_residual", x, tape.dropout("feed_dropout", branch, ratio=dropout))
    if not first:
        tape.layer_norm("final_layer_norm", x, affine=affine)
    return tape.block("dense")


def build_bloom(s: Settings) -> ModelGraph:
    """BLOOM: positions as biases on the scores (ALiBi), a norm behind the embedding."""
    width = s.count("hidden_size", also="n_embed")
    names = TrunkNames(root="transformer", embedding="word_embeddings", layers="h", norm="ln_f")

    def before(prefix: str) -> Block:
        tape = Tape()
        tokens = tape.embedding(f"{prefix}word_embeddings", rows=s.count("vocab_size"), width=width)
        tape.layer_norm(f"{prefix}word_embeddings_layernorm", tokens)
        return tape.block("embedding")

    return decoder_graph(
        s,
        repeat(_bloom_layer(s, width), s.layers("n_layer", also="num_hidden_layers")),
        default_architecture="BloomForCausalLM",
        names=names,
        width=width,
        norm=layer_norm,
        max_seq_len=None,
        before=before,
        tied_by_default=True,
    )


def _bloom_layer(s: Settings, width: int) -> Block:
    tape, x = Tape(), stream(width)
    dropout = s.ratio("hidden_dropout", 0.0)
    shape = plain_heads(s, width=width, heads=s.count("n_head", also="num_attention_heads"))
    qkv = tape.linear("self_attention.query_key_value", tape.layer_norm("input_layernorm", x), 3 * width, bias=True)
    q, k, v = (qkv.view(width) for _ in range(3))
    merged = tape.attention("self_attention", q, k, v, shape, dropout=s.ratio("attention_dropout", 0.0))
    branch = tape.linear("self_attention.dense", merged, width, bias=True)
    x = tape.add_residual("attention_residual", x, tape.dropout("attention_dropout", branch, ratio=dropout))
    normed = tape.layer_norm("post_attention_layernorm", x)
    hidden = tape.linear("mlp.dense_h_to_4h", normed, 4 * width, bias=True)
    # BLOOM's own tanh GELU recomputes in backward: it keeps its input alone.
    active = tape.activation("mlp.gelu_impl", hidden, "gelu")
    branch = tape.linear("mlp.dense_4h_to_h", active, width, bias=True)
    tape.add_residual("feed_residual", x, tape.dropout("feed_dropout", branch, ratio=dropout))
    return tape.block("dense")


def build_gpt_neox(s: Settings) -> ModelGraph:
    """GPT-NeoX and Pythia: both branches read the layer's input, a quarter of each head is rotated."""
    width = s.count("hidden_size")
    return decoder_graph(
        s,
        repeat(_neox_layer(s, width), s.layers("num_hidden_layers")),
        default_architecture="GPTNeoXForCausalLM",
        names=TrunkNames(root="gpt_neox", embedding="embed_in", norm="final_layer_norm"),
        width=width,
        norm=layer_norm,
        max_seq_len=s.count("max_position_embeddings", 2048),
    )


def _neox_layer(s: Settings, width: int) -> Block:
    tape, x = Tape(), stream(width)
    bias, dropout = s.flag("attention_bias", True), s.ratio("hidden_dropout", 0.0)
    shape = plain_heads(s, width=width, heads=s.count("num_attention_heads"))
    rotated = int(shape.qk_width * s.rotary_ratio(0.25, also="rotary_pct"))
    qkv = tape.linear("attention.query_key_value", tape.layer_norm("input_layernorm", x), 3 * width, bias=bias)
    q, k, v = (qkv.view(width) for _ in range(3))
    q, k = tape.rotary("attention.q", q, width=rotated), tape.rotary("attention.k", k, width=rotated)
    merged = tape.attention("attention", q, k, v, shape, dropout=s.ratio("attention_dropout", 0.0), copies_output=True)
    branch = tape.dropout(
        "post_attention_dropout", tape.linear("attention.dense", merged, width, bias=bias), ratio=dropout
    )
    parallel = s.flag("use_parallel_residual", True)
    middle = x if parallel else tape.add_residual("attention_residual", x, branch)
    normed = tape.layer_norm("post_attention_layernorm", middle)
    hidden = tape.linear("mlp.dense_h_to_4h", normed, s.count("intermediate_size"), bias=True)
    active = tape.activation("mlp.act", hidden, s.function("hidden_act", "gelu"))
    fed = tape.linear("mlp.dense_4h_to_h", active, width, bias=True)
    fed = tape.dropout("post_mlp_dropout", fed, ratio=dropout)
    tape.add_residual("residual", middle, fed, *((branch,) if parallel else ()))
    return tape.block("parallel" if parallel else "dense")
