"""T5 (and Flan-T5, T5 1.1): an encoder and a decoder that reads it, biases by relative position.

Source: modeling file of transformers 5.24, model t5; Raffel et al. 2019.
"""

from __future__ import annotations

from trireme.errors import ModelError
from trireme.graph.block import Block
from trireme.graph.model import ModelGraph, Side, Stack, Tie
from trireme.graph.op import AttentionShape, Op, Param
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape
from trireme.graph.tensor import Saved, Tensor, stream


def build_t5(s: Settings) -> ModelGraph:
    """T5 with its language head, or bare."""
    architecture = s.architecture("T5ForConditionalGeneration")
    if architecture not in ("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5Model"):
        raise ModelError("graph.unknown_head", model=s.name, architecture=architecture, family=s.family)
    num_layers, vocab_size, width = s.layers("num_layers"), s.count("vocab_size"), s.count("d_model")
    stacks = (
        _stack(s, "encoder", num_layers, vocab_size, width),
        _stack(s, "decoder", s.layers("num_decoder_layers", num_layers), vocab_size, width),
    )
    ties = [Tie(alias=f"{side}.embed_tokens.weight", owner="shared.weight") for side in ("encoder", "decoder")]
    head, loss = Tape(), Tape()
    if architecture != "T5Model":
        loss.cross_entropy(head.linear("lm_head", stream(width, name="normed"), vocab_size))
        if s.flag("tie_word_embeddings", True):
            ties.append(Tie(alias="lm_head.weight", owner="shared.weight"))
    return ModelGraph(
        name=s.name,
        family=s.family,
        architecture=architecture,
        vocab_size=vocab_size,
        max_seq_len=None,
        stacks=stacks,
        head=head.block("head"),
        loss=loss.block("loss"),
        ties=tuple(ties),
    )


def _stack(s: Settings, side: Side, num_layers: int, vocab_size: int, width: int) -> Stack:
    before, after = Tape(), Tape()
    dropout = s.ratio("dropout_rate", 0.1)
    if side == "encoder":  # the table both sides look into has a name of its own
        before.parameter("shared.weight", (vocab_size, width))
    tokens = before.embedding(f"{side}.embed_tokens", rows=vocab_size, width=width)
    before.dropout(f"{side}.dropout", tokens, ratio=dropout)
    normed = after.rms_norm(f"{side}.final_layer_norm", stream(width, name="hidden"), flavour="t5")
    after.dropout(f"{side}.final_dropout", normed, ratio=dropout)
    first, rest = (_layer(s, side, width, owns_bias=owns) for owns in (True, False))
    return Stack(
        path=f"{side}.block",
        width=width,
        before=before.block("embedding"),
        blocks=tuple(first if index == 0 else rest for index in range(num_layers)),
        after=after.block("final"),
        side=side,
    )


def _layer(s: Settings, side: Side, width: int, *, owns_bias: bool) -> Block:
    tape, x = Tape(), stream(width)
    causal = side == "decoder"
    x = _attention(tape, x, s, "layer.0", "SelfAttention", causal=causal, owns_bias=owns_bias)
    if side == "decoder":
        x = _attention(tape, x, s, "layer.1", "EncDecAttention", cross=True)
    _feed(tape, x, s, f"layer.{2 if side == 'decoder' else 1}")
    return tape.block(side)


def _attention(
    tape: Tape,
    x: Tensor,
    s: Settings,
    path: str,
    module: str,
    *,
    causal: bool = False,
    cross: bool = False,
    owns_bias: bool = False,
) -> Tensor:
    heads, head_width, dropout = s.count("num_heads"), s.count("d_kv"), s.ratio("dropout_rate", 0.1)
    inner, name = heads * head_width, f"{path}.{module}"
    normed = tape.rms_norm(f"{path}.layer_norm", x, flavour="t5")
    source = Tensor(name="memory", width=x.width, rows="memory", kind="stream", shared=True) if cross else normed
    q = tape.linear(f"{name}.q", normed, inner)
    k = tape.linear(f"{name}.k", source, inner, rows=source.rows)
    v = tape.linear(f"{name}.v", source, inner, rows=source.rows)
    if owns_bias:
        _relative_bias(tape, name, heads, s.count("relative_attention_num_buckets", 32))
    shape = AttentionShape(
        heads=heads,
        kv_heads=heads,
        qk_width=head_width,
        v_width=head_width,
        causal=causal,
        cross=cross,
        cache_width=2 * inner if causal or cross else 0,
    )
    merged = tape.attention(name, q, k, v, shape, upcast=False, dropout=dropout, learned_bias=True)
    branch = tape.dropout(f"{path}.dropout", tape.linear(f"{name}.o", merged, x.width), ratio=dropout)
    return tape.add_residual(f"{path}.residual", x, branch)


def _relative_bias(tape: Tape, name: str, heads: int, buckets: int) -> None:
    """A table of biases by distance, looked up once for all pairs of positions and used by every layer."""
    indices = Tensor(name=f"{name}.buckets", width=1, rows="position_pairs", kind="int64")
    tape.add(
        Op(
            name=f"{name}.relative_attention_bias",
            kind="embedding",
            params=(Param(name="weight", shape=(buckets, heads)),),
            saves=(Saved(tensor=indices),),
        )
    )


def _feed(tape: Tape, x: Tensor, s: Settings, path: str) -> Tensor:
    name, ffn, dropout = f"{path}.DenseReluDense", s.count("d_ff"), s.ratio("dropout_rate", 0.1)
    normed = tape.rms_norm(f"{path}.layer_norm", x, flavour="t5")
    form = s.text("feed_forward_proj", "relu")
    gated = form.startswith("gated-")
    # Published gated models say "gelu" and mean its tanh form written out.
    plain = "gelu_new" if form == "gated-gelu" else form.removeprefix("gated-")
    function = Settings({"feed_forward_proj": plain}, name=s.name).function("feed_forward_proj", plain)
    if gated:
        active = tape.activation(f"{name}.act", tape.linear(f"{name}.wi_0", normed, ffn), function)
        hidden = tape.product(name, active, tape.linear(f"{name}.wi_1", normed, ffn))
    else:
        hidden = tape.activation(f"{name}.act", tape.linear(f"{name}.wi", normed, ffn), function)
    hidden = tape.dropout(f"{name}.dropout", hidden, ratio=dropout)
    branch = tape.dropout(f"{path}.dropout", tape.linear(f"{name}.wo", hidden, x.width), ratio=dropout)
    return tape.add_residual(f"{path}.residual", x, branch)
