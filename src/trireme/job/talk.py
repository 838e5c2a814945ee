"""A talk of several turns with a loaded model, by its chat template or, without one, as plain text."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace

from trireme.errors import ModelError
from trireme.job.loading import LoadedRun
from trireme.job.sampling import Sampling
from trireme.job.writing import Continuation, prompt_ids
from trireme.words import say


class Talk:
    """Remembers the turns. What no longer fits the model's context is left out, oldest first, and said.

    A base model has no template: its turns are joined by newlines and it writes on, for that is what it
    learned.
    """

    def __init__(
        self,
        loaded: LoadedRun,
        *,
        sampling: Sampling,
        system: str | None = None,
        notice: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._loaded = loaded
        self._sampling = sampling
        self._system = [{"role": "system", "content": system}] if system else []
        self._notice = notice
        self._turns: list[dict[str, str]] = []
        self._num_replies = 0

    def reset(self) -> None:
        """Forget all turns."""
        self._turns.clear()

    def reply(self, text: str) -> Generator[str, None, None]:
        """Take the user's turn and yield the model's, piece by piece; an interrupted reply is remembered as it is."""
        self._turns.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            continuation = self._continue()
            for piece in continuation:
                pieces.append(piece)
                yield piece
            if continuation.end == "context":
                self._notice(say("generate.context_full", max_seq_len=self._loaded.max_seq_len))
        finally:
            self._turns.append({"role": "assistant", "content": "".join(pieces)})

    def _continue(self) -> Continuation:
        ids = self._fitting_ids()
        sampling = replace(self._sampling, seed=self._sampling.seed + self._num_replies)
        self._num_replies += 1
        return Continuation(self._loaded, ids, sampling=sampling)

    def _fitting_ids(self) -> list[int]:
        """The tokens of the newest turns that leave room for a reply."""
        limit = self._loaded.max_seq_len
        room = None if limit is None else limit - min(self._sampling.max_new_tokens, limit // 2)
        first, ids = 0, self._ids(self._turns)
        while room is not None and len(ids) > room and first + 2 < len(self._turns):
            first += 2
            ids = self._ids(self._turns[first:])
        if first:
            del self._turns[:first]
            self._notice(say("generate.turns_dropped", count=first, max_seq_len=limit))
        return ids

    def _ids(self, turns: list[dict[str, str]]) -> list[int]:
        template = self._loaded.chat_template
        if template is not None:
            return template.encode([*self._system, *turns], tokenizer=self._loaded.tokenizer)
        return prompt_ids(self._loaded, "\n".join(turn["content"] for turn in [*self._system, *turns]) + "\n")


def check_system(loaded: LoadedRun, system: str | None) -> None:
    """Refuse instructions that the model has no way to tell from text.

    Raises:
        ModelError: There is no chat template.
    """
    if system and loaded.chat_template is None:
        raise ModelError("generate.no_system", path=loaded.path)
