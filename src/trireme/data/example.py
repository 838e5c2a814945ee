"""One sample as a person may check it: its texts, and for each token whether it is learned."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from trireme.data.batch import NOT_LEARNED, PADDING_DOCUMENT
from trireme.data.gather import empty_block
from trireme.data.stream import SampleStream


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleToken:
    """One token of a sample; it is learned if some position has it as its label."""

    token_id: int
    text: str
    position: int
    learned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSpan:
    """Text of neighbouring tokens that are all learned or all only read."""

    text: str
    learned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamplePiece:
    """A document, or a piece of a long one, within the sample."""

    number: int
    tokens: tuple[ExampleToken, ...]
    spans: tuple[ExampleSpan, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sample, whole. ``num_padding`` positions hold nothing."""

    sample_id: int
    source: str
    pieces: tuple[ExamplePiece, ...]
    num_padding: int


def build_example(stream: SampleStream, sample_id: int, *, tokenizer: Any) -> Example:
    """Return sample ``sample_id`` as text (before any sample_map)."""
    source = stream.source_of(sample_id)
    block = empty_block(1, seq_len=stream.seq_len)
    source.reader.fill(np.array([sample_id - source.base_id]), block, pad_id=0)
    inputs, labels, _, documents = block[:, 0]
    return Example(
        sample_id=sample_id,
        source=source.name,
        pieces=tuple(_pieces(inputs, labels=labels, documents=documents, tokenizer=tokenizer)),
        num_padding=int((documents == PADDING_DOCUMENT).sum()),
    )


def _pieces(inputs: np.ndarray, *, labels: np.ndarray, documents: np.ndarray, tokenizer: Any) -> Iterator[ExamplePiece]:
    for number in range(int(documents.max()) + 1):
        mine = documents == number
        ids, learned = _tokens_of_piece(inputs[mine].tolist(), labels[mine].tolist())
        tokens = tuple(
            ExampleToken(token_id=token_id, text=tokenizer.token_text(token_id), position=place, learned=is_learned)
            for place, (token_id, is_learned) in enumerate(zip(ids, learned, strict=True))
        )
        yield ExamplePiece(number=number, tokens=tokens, spans=tuple(_spans(tokens, tokenizer=tokenizer)))


def _tokens_of_piece(inputs: list[int], labels: list[int]) -> tuple[list[int], list[bool]]:
    """Return the tokens, the last label included, and for each whether it is learned."""
    ids = [*inputs, labels[-1]] if labels[-1] != NOT_LEARNED else inputs
    learned = [False, *(label != NOT_LEARNED for label in labels)]
    return ids, learned[: len(ids)]


def _spans(tokens: tuple[ExampleToken, ...], *, tokenizer: Any) -> Iterator[ExampleSpan]:
    for learned, group in groupby(tokens, key=lambda token: token.learned):
        text = tokenizer.decode([token.token_id for token in group], skip_special=False)
        yield ExampleSpan(text=text, learned=learned)
