"""BERT: an encoder that normalises after each branch.

Source: modeling file of transformers 5.24, model bert; Devlin et al. 2018.
"""

from __future__ import annotations

from trireme.errors import ModelError
from trireme.graph.block import Block
from trireme.graph.families.gpt import plain_heads
from trireme.graph.families.rope import repeat
from trireme.graph.model import ModelGraph, Stack, Tie
from trireme.graph.settings import Settings
from trireme.graph.tape import Tape
from trireme.graph.tensor import Tensor, stream

_HEADS = (
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertModel",
    "BertForSequenceClassification",
    "BertForTokenClassification",
)


def build_bert(s: Settings) -> ModelGraph:
    """BERT with the head that ``architectures`` names."""
    architecture = s.architecture("BertForMaskedLM")
    if architecture not in _HEADS:
        raise ModelError("graph.unknown_head", model=s.name, architecture=architecture, family=s.family)
    width, vocab_size = s.count("hidden_size"), s.count("vocab_size")
    prefix = "" if architecture == "BertModel" else "bert."
    stack = Stack(
        path=f"{prefix}encoder.layer",
        width=width,
        before=_embedding(s, prefix, width, vocab_size),
        blocks=tuple(repeat(_layer(s, width), s.layers("num_hidden_layers"))),
        after=Block(kind="final"),
        side="encoder",
    )
    head, loss = Tape(), Tape()
    ties = _head(head, loss, s, architecture, width, vocab_size)
    return ModelGraph(
        name=s.name,
        family=s.family,
        architecture=architecture,
        vocab_size=vocab_size,
        max_seq_len=s.count("max_position_embeddings", 512),
        stacks=(stack,),
        head=head.block("head"),
        loss=loss.block("loss"),
        ties=ties,
    )


def _embedding(s: Settings, prefix: str, width: int, vocab_size: int) -> Block:
    tape, path = Tape(), f"{prefix}embeddings"
    positions, types = s.count("max_position_embeddings", 512), s.count("type_vocab_size", 2)
    tokens = tape.embedding(f"{path}.word_embeddings", rows=vocab_size, width=width)
    kinds = tape.embedding(f"{path}.token_type_embeddings", rows=types, width=width)
    places = tape.embedding(f"{path}.position_embeddings", rows=positions, width=width, per="positions")
    normed = tape.layer_norm(f"{path}.LayerNorm", tape.add_residual("embedded", tokens, kinds, places))
    tape.dropout(f"{path}.dropout", normed, ratio=s.ratio("hidden_dropout_prob", 0.1))
    return tape.block("embedding")


def _layer(s: Settings, width: int) -> Block:
    tape, x = Tape(), stream(width)
    dropout = s.ratio("hidden_dropout_prob", 0.1)
    shape = plain_heads(s, width=width, heads=s.count("num_attention_heads"), causal=False)
    q, k, v = (tape.linear(f"attention.self.{part}", x, width, bias=True) for part in ("query", "key", "value"))
    merged = tape.attention(
        "attention.self", q, k, v, shape, upcast=False, dropout=s.ratio("attention_probs_dropout_prob", 0.1)
    )
    branch = tape.linear("attention.output.dense", merged, width, bias=True)
    branch = tape.dropout("attention.output.dropout", branch, ratio=dropout)
    x = tape.layer_norm("attention.output.LayerNorm", tape.add_residual("attention.residual", x, branch))
    hidden = tape.linear("intermediate.dense", x, s.count("intermediate_size"), bias=True)
    active = tape.activation("intermediate.act", hidden, s.function("hidden_act", "gelu"))
    branch = tape.dropout("output.dropout", tape.linear("output.dense", active, width, bias=True), ratio=dropout)
    tape.layer_norm("output.LayerNorm", tape.add_residual("output.residual", x, branch))
    return tape.block("dense")


def _head(tape: Tape, loss: Tape, s: Settings, architecture: str, width: int, vocab_size: int) -> tuple[Tie, ...]:
    hidden = stream(width, name="hidden")
    pooled = hidden
    if architecture in ("BertForPreTraining", "BertForSequenceClassification", "BertModel"):
        path = "pooler" if architecture == "BertModel" else "bert.pooler"
        first = Tensor(name="first_token", width=width, rows="seqs")
        pooled = tape.linear(f"{path}.dense", first, width, bias=True, rows="seqs")
    if architecture in ("BertForSequenceClassification", "BertForTokenClassification"):
        labels = s.num_labels()
        scores = tape.linear("classifier", pooled, labels, bias=True, rows=pooled.rows)
        loss.cross_entropy(scores, rows=pooled.rows)
        return ()
    if architecture not in ("BertForPreTraining", "BertForMaskedLM"):
        return ()
    return _language_head(tape, loss, s, hidden, pooled if architecture == "BertForPreTraining" else None, vocab_size)


def _language_head(
    tape: Tape, loss: Tape, s: Settings, hidden: Tensor, pooled: Tensor | None, vocab_size: int
) -> tuple[Tie, ...]:
    path, width = "cls.predictions", hidden.width
    x = tape.linear(f"{path}.transform.dense", hidden, width, bias=True)
    x = tape.activation(f"{path}.transform.act", x, s.function("hidden_act", "gelu"))
    x = tape.layer_norm(f"{path}.transform.LayerNorm", x)
    tape.parameter(f"{path}.bias", (vocab_size,))
    loss.cross_entropy(tape.linear(f"{path}.decoder", x, vocab_size, bias=True))
    if pooled is not None:
        tape.linear("cls.seq_relationship", pooled, 2, bias=True, rows="seqs")
    ties = [Tie(alias=f"{path}.decoder.bias", owner=f"{path}.bias")]
    if s.flag("tie_word_embeddings", True):
        ties.append(Tie(alias=f"{path}.decoder.weight", owner="bert.embeddings.word_embeddings.weight"))
    return tuple(ties)
