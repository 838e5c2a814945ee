"""The frame that decoder-only families share: embedding, a stack of layers, final norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trireme.errors import ModelError
from trireme.graph.block import Block
from trireme.graph.model import ModelGraph, Stack, Tie
from trireme.graph.settings import Settings
from trireme.graph.tape import NormFlavour, Tape
from trireme.graph.tensor import Kind, Tensor, stream

Norm = Callable[[Tape, str, Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkNames:
    """Module names of a family: ``root`` holds the trunk below a head, ``bare_root`` without one."""

    root: str = "model"
    bare_root: str = ""
    embedding: str = "embed_tokens"
    layers: str = "layers"
    norm: str = "norm"
    head: str = "lm_head"


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """Which head an architecture has, and the prefix that its trunk's names get."""

    architecture: str
    kind: str
    prefix: str


def read_heading(s: Settings, *, default: str, names: TrunkNames) -> Heading:
    """Read the head from ``architectures``: language model, sequence classifier or none.

    Raises:
        ModelError: The architecture has another head.
    """
    architecture = s.architecture(default)
    if architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return Heading(architecture=architecture, kind="language_model", prefix=f"{names.root}.")
    if architecture.endswith("ForSequenceClassification"):
        return Heading(architecture=architecture, kind="classifier", prefix=f"{names.root}.")
    if architecture.endswith("Model"):
        return Heading(architecture=architecture, kind="none", prefix=names.bare_root)
    raise ModelError("graph.unknown_head", model=s.name, architecture=architecture, family=s.family)


def rms(flavour: NormFlavour = "plain", *, output_kind: Kind = "stream") -> Norm:
    """RMSNorm of that flavour."""
    return lambda tape, name, x: tape.rms_norm(name, x, flavour=flavour, output_kind=output_kind)


def layer_norm(tape: Tape, name: str, x: Tensor) -> Tensor:
    """torch's LayerNorm with weight and bias."""
    return tape.layer_norm(name, x)


def token_embedding(prefix: str, names: TrunkNames, *, vocab_size: int, width: int) -> Block:
    """Nothing but the token embedding."""
    tape = Tape()
    tape.embedding(f"{prefix}{names.embedding}", rows=vocab_size, width=width)
    return tape.block("embedding")


def final_norm(prefix: str, names: TrunkNames, norm: Norm, *, width: int) -> Block:
    """The norm after the last layer."""
    tape = Tape()
    norm(tape, f"{prefix}{names.norm}", stream(width, name="hidden"))
    return tape.block("final")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadBlocks:
    """Head and loss, and the tie between head and embedding if there is one."""

    head: Block
    loss: Block
    ties: tuple[Tie, ...]


def language_head(
    s: Settings,
    heading: Heading,
    names: TrunkNames,
    *,
    width: int,
    vocab_size: int,
    tied_by_default: bool,
    bias: bool = False,
    softcap: bool = False,
) -> HeadBlocks:
    """The head that ``heading`` asks for, tied to the embedding where the settings say so."""
    tape, loss = Tape(), Tape()
    hidden = stream(width, name="normed")
    if heading.kind == "none":
        return HeadBlocks(head=tape.block("head"), loss=loss.block("loss"), ties=())
    if heading.kind == "classifier":
        labels = s.num_labels()
        loss.cross_entropy(tape.linear("score", hidden, labels), rows="seqs")
        return HeadBlocks(head=tape.block("head"), loss=loss.block("loss"), ties=())
    logits = tape.linear(names.head, hidden, vocab_size, bias=bias)
    if softcap:
        logits = tape.softcap("logits", logits)
    loss.cross_entropy(logits)
    tied = s.flag("tie_word_embeddings", tied_by_default)
    ties = (Tie(alias=f"{names.head}.weight", owner=f"{heading.prefix}{names.embedding}.weight"),) if tied else ()
    return HeadBlocks(head=tape.block("head"), loss=loss.block("loss"), ties=ties)


def decoder_graph(
    s: Settings,
    blocks: Sequence[Block],
    *,
    default_architecture: str,
    names: TrunkNames,
    width: int,
    norm: Norm,
    max_seq_len: int | None,
    before: Callable[[str], Block] | None = None,
    head_width: int | None = None,
    tied_by_default: bool = False,
    head_bias: bool = False,
    head_softcap: bool = False,
    omitted: tuple[str, ...] = (),
) -> ModelGraph:
    """Put layers into the frame; ``before`` replaces the plain token embedding and gets the name prefix."""
    heading = read_heading(s, default=default_architecture, names=names)
    vocab_size = s.count("vocab_size")
    embedding = before(heading.prefix) if before else None
    stack = Stack(
        path=f"{heading.prefix}{names.layers}",
        width=width,
        before=embedding or token_embedding(heading.prefix, names, vocab_size=vocab_size, width=width),
        blocks=tuple(blocks),
        after=final_norm(heading.prefix, names, norm, width=width),
    )
    top = language_head(
        s,
        heading,
        names,
        width=head_width or width,
        vocab_size=vocab_size,
        tied_by_default=tied_by_default,
        bias=head_bias,
        softcap=head_softcap,
    )
    return ModelGraph(
        name=s.name,
        family=s.family,
        architecture=heading.architecture,
        vocab_size=vocab_size,
        max_seq_len=max_seq_len,
        stacks=(stack,),
        head=top.head,
        loss=top.loss,
        ties=top.ties,
        omitted=omitted,
    )
