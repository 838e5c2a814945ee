"""Trireme's own decoder as a ModelGraph, from the shape alone.

Its norms compute in float32 and cast their result to the format of products, its rotation is float32 and gives back
the format it got. Described is the library path that accelerators take.
"""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.decoder import DecoderShape
from trireme.graph.families.decoder import TrunkNames, final_norm, rms, token_embedding
from trireme.graph.families.rope import AttentionStyle, LayerStyle, gated_mlp, repeat, rope_layer
from trireme.graph.model import ModelGraph, Stack, Tie
from trireme.graph.op import AttentionShape
from trireme.graph.tape import Tape
from trireme.graph.tensor import stream

_NAMES = TrunkNames(root="")
_NORM = rms("float32", output_kind="compute")


def read_shape(shape: DecoderShape, *, name: str = "decoder") -> ModelGraph:
    """Build the graph of a reference decoder; parameter names are those of ``trireme.models.Decoder``."""
    stack = Stack(
        path=_NAMES.layers,
        width=shape.d_model,
        before=token_embedding("", _NAMES, vocab_size=shape.vocab_size, width=shape.d_model),
        blocks=tuple(repeat(_layer(shape), shape.num_layers)),
        after=final_norm("", _NAMES, _NORM, width=shape.d_model),
    )
    head, loss = Tape(), Tape()
    logits = head.linear(_NAMES.head, stream(shape.d_model, name="normed"), shape.vocab_size)
    loss.cross_entropy(logits)
    tie = Tie(alias=f"{_NAMES.head}.weight", owner=f"{_NAMES.embedding}.weight")
    return ModelGraph(
        name=name,
        family="trireme",
        architecture="Decoder",
        vocab_size=shape.vocab_size,
        max_seq_len=shape.max_seq_len,
        stacks=(stack,),
        head=head.block("head"),
        loss=loss.block("loss"),
        ties=(tie,) if shape.tie_embeddings else (),
    )


def _layer(shape: DecoderShape) -> Block:
    attention = AttentionShape(
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        qk_width=shape.head_width,
        v_width=shape.head_width,
        cache_width=2 * shape.num_kv_heads * shape.head_width,
    )
    rotated = AttentionStyle(rotary_float32=True, rotary_output="compute")
    style = LayerStyle(attention=rotated, norm=_NORM, dropout=shape.dropout)
    return rope_layer(shape.d_model, attention, style, lambda tape, x: gated_mlp(tape, x, shape.d_ffn), kind="dense")
