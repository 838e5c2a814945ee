"""Text out of a model, as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from trireme.errors import ModelError
from trireme.job.loading import LoadedRun
from trireme.job.sampling import Sampling

End = Literal["stop", "length", "context"]


class Continuation:
    """The text that follows some tokens; iterate to get it piece by piece, never half a character.

    ``end`` says why it is over: a stop token, the length asked for, or a full context.
    """

    def __init__(self, loaded: LoadedRun, ids: Sequence[int], *, sampling: Sampling) -> None:
        room = sampling.max_new_tokens if loaded.max_seq_len is None else loaded.max_seq_len - len(ids)
        if room <= 0:
            raise ModelError("generate.prompt_too_long", tokens=len(ids), max_seq_len=loaded.max_seq_len)
        self._loaded = loaded
        self._ids = ids
        self._sampling = sampling
        self._limit = min(sampling.max_new_tokens, room)
        self.num_tokens = 0
        self.end: End | None = None

    def __iter__(self) -> Iterator[str]:
        decoder = self._loaded.tokenizer.stream_decoder()
        for token_id in self._tokens():
            self.num_tokens += 1
            yield decoder.push(token_id)
        yield decoder.finish()
        full = self._limit < self._sampling.max_new_tokens
        self.end = "stop" if self.num_tokens < self._limit else "context" if full else "length"

    def _tokens(self) -> Iterator[int]:
        from trireme.models import generate

        return generate(
            self._loaded.model,
            self._ids,
            max_new_tokens=self._limit,
            temperature=self._sampling.temperature,
            top_p=self._sampling.top_p,
            top_k=self._sampling.top_k,
            seed=self._sampling.seed,
            stop_ids=self._loaded.stop_ids,
            vocab_size=self._loaded.tokenizer.vocab_size,
        )


def prompt_ids(loaded: LoadedRun, text: str) -> list[int]:
    """Return the tokens of a prompt, begun as a document begins in training.

    Raises:
        ModelError: It is empty and there is no begin token to start from.
    """
    bos_id = loaded.tokenizer.bos_id
    ids = [bos_id] if loaded.adds_bos and bos_id is not None else []
    ids += loaded.tokenizer.encode(text)
    if not ids:
        raise ModelError("generate.empty_prompt")
    return ids
