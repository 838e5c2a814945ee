"""Llama 4's language model: chunked attention with rotary positions, full attention without, top-1 experts.

transformers sends every token through every expert, multiplied by zero where it isn't routed; this graph counts
what the model needs and what training systems do, the routed tokens.

Source: modeling file of transformers 5.24, model llama4.
"""

from __future__ import annotations

from trireme.graph.block import Block
from trireme.graph.families.decoder import TrunkNames, decoder_graph, rms
from trireme.graph.families.moe import ExpertStyle, RouterStyle, moe_feed
from trireme.graph.families.rope import AttentionStyle, Feed, LayerStyle, gated_mlp, read_attention, rope_layer
from trireme.graph.model import ModelGraph
from trireme.graph.settings import Settings

_OMITTED = ("vision_model", "multi_modal_projector")


def build_llama4(s: Settings) -> ModelGraph:
    """The language part of the released models; their vision tower is left out and named."""
    inner = s.nested("text_config")
    text = Settings({"model_type": "llama4", **inner.values, "architectures": ["Llama4ForCausalLM"]}, name=s.name)
    return _graph(text, prefix="language_model.", omitted=_OMITTED)


def build_llama4_text(s: Settings) -> ModelGraph:
    """The language model alone."""
    return _graph(s, prefix="", omitted=())


def _graph(s: Settings, *, prefix: str, omitted: tuple[str, ...]) -> ModelGraph:
    num_layers = s.layers("num_hidden_layers", 48)
    rotated = _rotated_layers(s, num_layers)
    sparse = _sparse_layers(s, num_layers)
    pairs = list(zip(rotated, sparse, strict=True))
    blocks = {pair: _layer(s, rotated=pair[0], sparse=pair[1]) for pair in sorted(set(pairs))}
    return decoder_graph(
        s,
        [blocks[pair] for pair in pairs],
        default_architecture="Llama4ForCausalLM",
        names=TrunkNames(root=f"{prefix}model", head=f"{prefix}lm_head"),
        width=s.count("hidden_size", 5120),
        norm=rms(),
        max_seq_len=s.count("max_position_embeddings", 131072),
        omitted=omitted,
    )


def _rotated_layers(s: Settings, num_layers: int) -> tuple[bool, ...]:
    """Every fourth layer has no rotary positions, unless listed (1 means rotated)."""
    if s.raw("no_rope_layers"):  # an empty list means the rule below
        listed = s.choices("no_rope_layers", length=num_layers, of=("0", "1"), may_be_longer=True) or ()
        return tuple(bool(int(item)) for item in listed)
    every = s.count("no_rope_layer_interval", 4)
    return tuple((index + 1) % every != 0 for index in range(num_layers))


def _sparse_layers(s: Settings, num_layers: int) -> tuple[bool, ...]:
    step = s.count("interleave_moe_layer_step", 1)
    listed = s.indices("moe_layers")
    chosen = listed if listed is not None else range(step - 1, num_layers, step)
    return tuple(index in chosen for index in range(num_layers))


def _layer(s: Settings, *, rotated: bool, sparse: bool) -> Block:
    width, ffn = s.count("hidden_size", 5120), s.count("intermediate_size", 8192)
    dense_ffn = s.count("intermediate_size_mlp", 16384)
    bias = s.flag("attention_bias", False)
    attention = AttentionStyle(
        qkv_bias=bias,
        out_bias=bias,
        rotary=rotated,
        rotary_float32=True,
        upcast=False,
        qk_norm="bare" if s.flag("use_qk_norm", True) and rotated else "",
        dropout=s.ratio("attention_dropout", 0.0),
    )
    chunk = s.maybe_count("attention_chunk_size", 8192) if rotated else None
    experts = moe_feed(
        experts=s.count("num_local_experts", 16),
        top_k=s.count("num_experts_per_tok", 1),
        width=ffn,
        router=RouterStyle(name="router", normalised=False, float32_weights=False),
        style=ExpertStyle(transposed=True, grouped=False),
        path="feed_forward",
        shared_width=ffn,
        shared_name="shared_expert",
    )
    dense: Feed = lambda tape, x: gated_mlp(tape, x, dense_ffn, path="feed_forward")  # noqa: E731
    shape = read_attention(s, head_width=128, chunk=chunk)
    feed = experts if sparse else dense
    return rope_layer(width, shape, LayerStyle(attention=attention), feed, kind="moe" if sparse else "dense")
