"""Train a tokenizer here: byte-level BPE, so that any text comes back exactly; no normaliser of any kind."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from trireme.data.decode import byte_of_character
from trireme.data.pretokenize import split_rules
from trireme.data.progress import Progress, Silent
from trireme.data.tokenizer import Tokenizer
from trireme.errors import DataError

TRAINER_VERSION = 2
"""Raise it when the same texts would give another tokenizer; the cache of trained ones follows it."""
BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
LARGEST_VOCABULARY = 1 << 22
"""The trainer takes memory for the whole vocabulary at once, and ends the process where there is none."""
_MIN_FREQUENCY = 2
_PIECE_CHARACTERS = 1 << 18
_LONGEST_RUN = 512
_SIGNS = r"!-/:-@\[-`{-~\u3001-\u3003\uff01-\uff0f\uff1a-\uff20\u2014\u2018-\u201d\u2026"
_LONG_RUN = re.compile(
    rf"(?<![^\s{_SIGNS}])[^\s{_SIGNS}]{{{_LONGEST_RUN},}}|[{_SIGNS}]{{{_LONGEST_RUN},}}|\s{{{_LONGEST_RUN},}}"
)
"""A run without blank or stop. The trainer takes time by the square of a word's length, so such a run (base64, a
novel without punctuation) is shown to it in parts; what it learns elsewhere stays the same."""


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, words: Sequence[str] = (), progress: Progress | None = None
) -> Tokenizer:
    """Return a tokenizer learned from ``texts``; the same texts give the same tokenizer.

    Every byte is in the vocabulary, ``words`` are whole tokens of it wherever they stand. Too little text gives
    fewer tokens than ``vocab_size``; the tokenizer's own ``vocab_size`` says how many.

    Raises:
        DataError: ``vocab_size`` has no room for the bytes, the special tokens and the words, or is beyond any
            use; a word is a special token; there is no text.
    """
    unique = list(dict.fromkeys(words))
    if special := next((word for word in unique if word in (BEGIN, END, PAD)), None):
        raise DataError("data.word_is_special", word=special)
    if vocab_size > LARGEST_VOCABULARY:
        raise DataError("data.vocab_too_large", vocab_size=vocab_size, most=LARGEST_VOCABULARY)
    room = vocab_size - 256 - 3 - len(unique)
    if room < 0:
        raise DataError("data.vocab_too_small", vocab_size=vocab_size, words=len(unique), least=259 + len(unique))
    content = _learn(texts, vocab_size=vocab_size - len(unique), progress=progress or Silent())
    learned = content["model"]["vocab"]
    new = (word for word in unique if word not in learned)
    ids = learned | {word: len(learned) + i for i, word in enumerate(new)}
    content["added_tokens"] += [_added(ids[word], word) for word in unique]
    content["post_processor"] = _begin_rule()
    return Tokenizer(json.dumps(content), bos_id=0, eos_id=1, pad_id=2, origin="trained", specials_from="trained")


def _begin_rule() -> dict[str, Any]:
    """Tell other readers of the file what Trireme does by itself: a text begins with the begin token."""
    begin, first, second = {"SpecialToken": {"id": BEGIN, "type_id": 0}}, _sequence("A"), _sequence("B")
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {BEGIN: {"id": BEGIN, "ids": [0], "tokens": [BEGIN]}},
    }


def _sequence(name: str) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": 0}}


def _learn(texts: Iterable[str], *, vocab_size: int, progress: Progress) -> dict[str, Any]:
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, models, trainers

    engine = Engine(models.BPE())
    content = json.loads(engine.to_str()) | {"pre_tokenizer": split_rules()}
    engine = Engine.from_str(json.dumps(content))
    engine.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        special_tokens=[BEGIN, END, PAD],
        initial_alphabet=sorted(byte_of_character()),
        show_progress=False,
    )
    feed = _Feed(texts, progress)
    engine.train_from_iterator(iter(feed), trainer=trainer)
    if not feed.num_characters:
        raise DataError("data.no_text_to_train")
    learned: dict[str, Any] = json.loads(engine.to_str())
    return learned


class _Feed:
    """Hands texts to the trainer in bounded pieces and reports the bytes; an error in the source comes through."""

    def __init__(self, texts: Iterable[str], progress: Progress) -> None:
        self._texts = texts
        self._progress = progress
        self.num_characters = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.num_characters += len(text)
            self._progress.advance(len(text.encode()))
            for start in range(0, len(text), _PIECE_CHARACTERS):
                yield from _bounded(text[start : start + _PIECE_CHARACTERS])


def _bounded(text: str) -> Iterator[str]:
    """Cut runs that are too long; any other text comes whole."""
    place = 0
    for run in _LONG_RUN.finditer(text):
        yield text[place : run.start()]
        for place in range(run.start(), run.end(), _LONGEST_RUN):
            yield text[place : min(place + _LONGEST_RUN, run.end())]
        place = run.end()
    yield text[place:]


def _added(token_id: int, content: str) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    return {"id": token_id, "content": content, **flags}
