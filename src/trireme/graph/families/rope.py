"""The layer that most open decoders share: rotary grouped-query attention and a gated feed-forward part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from trireme.graph.block import Block
from trireme.graph.families.decoder import Norm, rms
from trireme.graph.op import AttentionShape
from trireme.graph.settings import Settings
from trireme.graph.tape import NormFlavour, Tape
from trireme.graph.tensor import Kind, Tensor, stream

LAYER_KINDS = ("full_attention", "sliding_attention")
"""Words for a layer's attention that families list per layer."""

Feed = Callable[[Tape, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormNames:
    """Where a layer normalises; an empty name is no norm there."""

    before_attention: str = "input_layernorm"
    after_attention: str = ""
    before_feed: str = "post_attention_layernorm"
    after_feed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionStyle:
    """How a family writes its attention.

    ``qk_norm``: ``head`` normalises each head of q and k, ``whole`` all heads together, ``bare`` each head
    without a weight, ``layer`` each head by LayerNorm. ``concatenates``: rotated and other parts of q are joined
    by a concatenation, which lays them out head by head.
    ``rotary_shared`` is false where every layer expands cosines and sines for itself.
    """

    path: str = "self_attn"
    qkv_bias: bool = False
    out_bias: bool = False
    fused_qkv: bool = False
    out_name: str = "o_proj"
    qk_norm: str = ""
    qk_norm_flavour: NormFlavour = "plain"
    rotary: bool = True
    rotary_width: int = 0
    rotary_float32: bool = False
    rotary_tables: str = "rotary"
    rotary_shared: bool = True
    rotary_output: Kind = "stream"
    concatenates: bool = False
    softcap: bool = False
    sinks: bool = False
    upcast: bool = True
    dropout: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerStyle:
    """Norms and attention of a layer."""

    attention: AttentionStyle = field(default_factory=AttentionStyle)
    norms: NormNames = field(default_factory=NormNames)
    norm: Norm = field(default_factory=rms)
    parallel: bool = False
    dropout: float = 0.0


def read_attention(
    s: Settings, *, head_width: int | None = None, window: int | None = None, chunk: int | None = None
) -> AttentionShape:
    """Heads and widths from the usual keys; a head is as wide as read, else ``head_width``, else its share.

    ``head_width`` stands in for an absent key only; a null asks for the share.
    """
    heads = s.count("num_attention_heads")
    kv_heads = s.count("num_key_value_heads", heads)
    s.divides(kv_heads, heads, part_key="num_key_value_heads", whole_key="num_attention_heads")
    width = s.maybe_count("head_dim", head_width)
    if width is None:
        width = s.divides(heads, s.count("hidden_size"), part_key="num_attention_heads", whole_key="hidden_size")
    return AttentionShape(
        heads=heads,
        kv_heads=kv_heads,
        qk_width=width,
        v_width=width,
        window=window,
        chunk=chunk,
        cache_width=2 * kv_heads * width,
    )


def rope_attention(tape: Tape, x: Tensor, shape: AttentionShape, style: AttentionStyle) -> Tensor:
    """Projections, rotary positions, attention, output projection."""
    path, q_width, kv_width = style.path, shape.heads * shape.qk_width, shape.kv_heads * shape.qk_width
    if style.fused_qkv:
        fused = tape.linear(f"{path}.qkv_proj", x, q_width + 2 * kv_width, bias=style.qkv_bias)
        q, k, v = fused.view(q_width), fused.view(kv_width), fused.view(kv_width)
    else:
        q = tape.linear(f"{path}.q_proj", x, q_width, bias=style.qkv_bias)
        k = tape.linear(f"{path}.k_proj", x, kv_width, bias=style.qkv_bias)
        v = tape.linear(f"{path}.v_proj", x, kv_width, bias=style.qkv_bias)
    if style.qk_norm in ("head", "whole"):
        size = shape.qk_width if style.qk_norm == "head" else None
        q = tape.rms_norm(f"{path}.q_norm", q, size=size, flavour=style.qk_norm_flavour)
        k = tape.rms_norm(f"{path}.k_norm", k, size=size, flavour=style.qk_norm_flavour)
    if style.qk_norm == "layer":
        q = tape.layer_norm(f"{path}.q_layernorm", q, size=shape.qk_width)
        k = tape.layer_norm(f"{path}.k_layernorm", k, size=shape.qk_width)
    if style.rotary:
        q = _rotate(tape, f"{path}.q", q, shape, style)
        k = _rotate(tape, f"{path}.k", k, shape, style)
    if style.qk_norm == "bare":
        q = tape.rms_norm(f"{path}.qk_norm.q", q, size=shape.qk_width, flavour="bare")
        k = tape.rms_norm(f"{path}.qk_norm.k", k, size=shape.qk_width, flavour="bare")
    merged = tape.attention(
        f"{path}.attention",
        q,
        k,
        v,
        shape,
        upcast=style.upcast,
        softcap=style.softcap,
        sinks=style.sinks,
        dropout=style.dropout,
        copies_output=style.concatenates,
    )
    return tape.linear(f"{path}.{style.out_name}", merged, x.width, bias=style.out_bias)


def _rotate(tape: Tape, name: str, x: Tensor, shape: AttentionShape, style: AttentionStyle) -> Tensor:
    return tape.rotary(
        name,
        x,
        width=style.rotary_width or shape.qk_width,
        float32=style.rotary_float32,
        tables=style.rotary_tables,
        shared=style.rotary_shared,
        output_kind=style.rotary_output,
    )


def gated_mlp(
    tape: Tape, x: Tensor, width: int, *, path: str = "mlp", function: str = "silu", bias: bool = False
) -> Tensor:
    """``down(act(gate(x)) * up(x))``."""
    gate = tape.linear(f"{path}.gate_proj", x, width, bias=bias)
    up = tape.linear(f"{path}.up_proj", x, width, bias=bias)
    active = tape.activation(f"{path}.act_fn", gate, function)
    return tape.linear(f"{path}.down_proj", tape.product(path, active, up), x.width, bias=bias)


def fused_gated_mlp(tape: Tape, x: Tensor, width: int, *, path: str = "mlp", function: str = "silu") -> Tensor:
    """The same with gate and up as one matrix, whose output both halves look into."""
    both = tape.linear(f"{path}.gate_up_proj", x, 2 * width)
    active = tape.activation(f"{path}.act_fn", both.view(width), function)
    return tape.linear(f"{path}.down_proj", tape.product(path, active, both.view(width)), x.width)


def rope_layer(width: int, shape: AttentionShape, style: LayerStyle, feed: Feed, *, kind: str = "layer") -> Block:
    """One residual layer."""
    tape, norms = Tape(), style.norms
    x = stream(width)
    branch = _maybe_norm(tape, norms.before_attention, x, style)
    branch = rope_attention(tape, branch, shape, style.attention)
    branch = _maybe_norm(tape, norms.after_attention, branch, style)
    x = tape.add_residual("attention_residual", x, tape.dropout("attention_dropout", branch, ratio=style.dropout))
    branch = feed(tape, _maybe_norm(tape, norms.before_feed, x, style))
    branch = _maybe_norm(tape, norms.after_feed, branch, style)
    tape.add_residual("feed_residual", x, tape.dropout("feed_dropout", branch, ratio=style.dropout))
    return tape.block(kind)


def _maybe_norm(tape: Tape, name: str, x: Tensor, style: LayerStyle) -> Tensor:
    return style.norm(tape, name, x) if name else x


def repeat(block: Block, count: int) -> list[Block]:
    """``count`` layers that are one object."""
    return [block] * count


def alternate(kinds: tuple[str, ...], blocks: dict[str, Block]) -> list[Block]:
    """One block per layer by its kind."""
    return [blocks[kind] for kind in kinds]
