"""ViT: an encoder over image patches with a class token.

Source: modeling file of transformers 5.24, model vit; Dosovitskiy et al. 2020.
"""

from __future__ import annotations

from trireme.errors import ModelError
from trireme.graph.block import Block
from trireme.graph.families.gpt import plain_heads
from trireme.graph.families.rope import repeat
from trireme.graph.model import ModelGraph, Stack
from trireme.graph.op import Matmul, Op, Param
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape
from trireme.graph.tensor import Saved, Tensor, stream


def build_vit(s: Settings) -> ModelGraph:
    """ViT with a classifier, or bare with its pooler."""
    architecture = s.architecture("ViTForImageClassification")
    if architecture not in ("ViTForImageClassification", "ViTModel"):
        raise ModelError("graph.unknown_head", model=s.name, architecture=architecture, family=s.family)
    width = s.count("hidden_size")
    prefix = "vit." if architecture == "ViTForImageClassification" else ""
    patches = _count_patches(s)
    after = Tape()
    after.layer_norm(f"{prefix}layernorm", stream(width, name="hidden"))
    stack = Stack(
        path=f"{prefix}layers",
        width=width,
        before=_embedding(s, prefix, width, patches),
        blocks=tuple(repeat(_layer(s, width), s.layers("num_hidden_layers"))),
        after=after.block("final"),
        side="encoder",
    )
    head, loss = Tape(), Tape()
    _head(head, loss, s, width, classifies=prefix != "")
    return ModelGraph(
        name=s.name,
        family=s.family,
        architecture=architecture,
        vocab_size=0,
        max_seq_len=patches + 1,
        fixed_seq_len=patches + 1,
        stacks=(stack,),
        head=head.block("head"),
        loss=loss.block("loss"),
    )


def _count_patches(s: Settings) -> int:
    size, patch = s.count("image_size", 224), s.count("patch_size", 16)
    if patch > size:
        s.divides(patch, size, part_key="patch_size", whole_key="image_size")
    return (size // patch) ** 2


def _embedding(s: Settings, prefix: str, width: int, patches: int) -> Block:
    tape, path = Tape(), f"{prefix}embeddings"
    channels, patch, size = s.count("num_channels", 3), s.count("patch_size", 16), s.count("image_size", 224)
    tape.parameter(f"{path}.cls_token", (1, 1, width))
    tape.parameter(f"{path}.position_embeddings", (1, patches + 1, width))
    pixels = Tensor(name="pixels", width=channels * size * size, rows="seqs")
    # One product per patch and image; the class token isn't projected.
    product = Matmul(inner=channels * patch * patch, outer=width, rows="seqs", times=patches)
    tape.add(
        Op(
            name=f"{path}.patch_embeddings.projection",
            kind="convolution",
            params=(Param(name="weight", shape=(width, channels, patch, patch)), Param(name="bias", shape=(width,))),
            matmuls=(product,),
            saves=(Saved(tensor=pixels),),
            inputs=(pixels,),
            output=Tensor(name="patches", width=width),
        )
    )
    tape.dropout(f"{path}.dropout", Tensor(name="embedded", width=width), ratio=s.ratio("hidden_dropout_prob", 0.0))
    return tape.block("embedding")


def _layer(s: Settings, width: int) -> Block:
    tape, x = Tape(), stream(width)
    bias, dropout = s.flag("qkv_bias", True), s.ratio("hidden_dropout_prob", 0.0)
    shape = plain_heads(s, width=width, heads=s.count("num_attention_heads"), causal=False)
    normed = tape.layer_norm("layernorm_before", x)
    q, k, v = (tape.linear(f"attention.{part}_proj", normed, width, bias=bias) for part in "qkv")
    merged = tape.attention("attention", q, k, v, shape, dropout=s.ratio("attention_probs_dropout_prob", 0.0))
    branch = tape.linear("attention.o_proj", merged, width, bias=True)
    x = tape.add_residual("attention_residual", x, tape.dropout("attention.dropout", branch, ratio=dropout))
    hidden = tape.linear("mlp.fc1", tape.layer_norm("layernorm_after", x), s.count("intermediate_size"), bias=True)
    branch = tape.linear(
        "mlp.fc2", tape.activation("mlp.act", hidden, s.function("hidden_act", "gelu")), width, bias=True
    )
    tape.add_residual("feed_residual", x, tape.dropout("mlp.dropout", branch, ratio=dropout))
    return tape.block("dense")


def _head(tape: Tape, loss: Tape, s: Settings, width: int, *, classifies: bool) -> None:
    """The class token's row is a view of all tokens, which therefore stay."""
    first = stream(width, name="normed")
    if not classifies:
        tape.linear("pooler.dense", first, s.count("pooler_output_size", width), bias=True, rows="seqs")
        return
    labels = s.num_labels()
    loss.cross_entropy(tape.linear("classifier", first, labels, bias=True, rows="seqs"), rows="seqs")
