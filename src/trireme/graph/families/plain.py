"""The graph of a decoder known by its numbers only."""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.families.decoder import Norm, TrunkNames, final_norm, layer_norm, rms
from trireme.graph.families.moe import RouterStyle, dense_then_sparse, moe_feed
from trireme.graph.families.rope import AttentionStyle, Feed, LayerStyle, gated_mlp, rope_layer
from trireme.graph.model import ModelGraph, Stack, Tie
from trireme.graph.numbers import DecoderNumbers
from trireme.graph.op import AttentionShape
from trireme.graph.tape import Tape
from trireme.graph.tensor import Tensor, stream

_NAMES = TrunkNames()


def read_numbers(numbers: DecoderNumbers, *, name: str = "decoder") -> ModelGraph:
    """Build the graph; parameter names are Llama's, with ``mlp.fc1`` and ``fc2`` where nothing is gated."""
    n, norm = numbers, _norm(numbers)
    stack = Stack(
        path=f"{_NAMES.root}.{_NAMES.layers}",
        width=n.d_model,
        before=_embedding(n),
        blocks=tuple(_layers(n)),
        after=final_norm(f"{_NAMES.root}.", _NAMES, norm, width=n.d_model),
    )
    head, loss = Tape(), Tape()
    loss.cross_entropy(head.linear(_NAMES.head, stream(n.d_model, name="normed"), n.vocab_size))
    tie = Tie(alias=f"{_NAMES.head}.weight", owner=f"{_NAMES.root}.{_NAMES.embedding}.weight")
    return ModelGraph(
        name=name,
        family="decoder",
        architecture="Decoder",
        vocab_size=n.vocab_size,
        max_seq_len=n.learned_positions,
        stacks=(stack,),
        head=head.block("head"),
        loss=loss.block("loss"),
        ties=(tie,) if n.tied else (),
    )


def _norm(n: DecoderNumbers) -> Norm:
    return rms() if n.gated else layer_norm


def _embedding(n: DecoderNumbers) -> Block:
    tape = Tape()
    tokens = tape.embedding(f"{_NAMES.root}.{_NAMES.embedding}", rows=n.vocab_size, width=n.d_model)
    if n.learned_positions:
        path = f"{_NAMES.root}.embed_positions"
        places = tape.embedding(path, rows=n.learned_positions, width=n.d_model, per="positions")
        tokens = tape.add_residual("embedded", tokens, places)
    tape.dropout(f"{_NAMES.root}.dropout", tokens, ratio=n.dropout)
    return tape.block("embedding")


def _layers(n: DecoderNumbers) -> list[Block]:
    shape = AttentionShape(
        heads=n.num_heads,
        kv_heads=n.kv_heads,
        qk_width=n.key_width,
        v_width=n.key_width,
        window=n.window,
        cache_width=2 * n.kv_heads * n.key_width,
    )
    bias = not n.gated
    attention = AttentionStyle(
        qkv_bias=bias, out_bias=bias, rotary=not n.learned_positions, upcast=n.gated, dropout=n.dropout
    )
    style = LayerStyle(attention=attention, norm=_norm(n), dropout=n.dropout)
    dense = rope_layer(n.d_model, shape, style, _dense_feed(n), kind="dense")
    if not n.num_experts:
        return [dense] * n.num_layers
    sparse = moe_feed(
        experts=n.num_experts, top_k=n.top_k, width=n.d_expert, router=RouterStyle(), shared_width=n.d_shared
    )
    return dense_then_sparse(
        first=n.num_dense_layers,
        num_layers=n.num_layers,
        dense=dense,
        sparse=rope_layer(n.d_model, shape, style, sparse, kind="moe"),
    )


def _dense_feed(n: DecoderNumbers) -> Feed:
    if n.gated:
        return lambda tape, x: gated_mlp(tape, x, n.ffn_width)
    return lambda tape, x: _plain_mlp(tape, x, n.ffn_width)


def _plain_mlp(tape: Tape, x: Tensor, width: int) -> Tensor:
    active = tape.activation("mlp.act", tape.linear("mlp.fc1", x, width, bias=True), "gelu")
    return tape.linear("mlp.fc2", active, x.width, bias=True)
