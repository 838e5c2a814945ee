"""Generation, token by token, from any causal module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.models.call import call_model, forward_inputs, logits_of
from trireme.models.decoder import Decoder
from trireme.models.precision import module_device
from trireme.words import say

_CACHE_NAMES = ("past_key_values", "cache")
"""What Hugging Face calls the cache, in forward and in its result; the name changed over versions."""


def generate(
    module: nn.Module,
    prompt_ids: Sequence[int],
    *,
    max_new_tokens: int,
    temperature: float = 0.8,
    top_p: float = 0.95,
    top_k: int = 0,
    seed: int = 0,
    stop_ids: Sequence[int] = (),
    vocab_size: int | None = None,
) -> Iterator[int]:
    """Yield the ids that follow ``prompt_ids``, one at a time; a stop id ends it and is not given.

    It also ends where the model's context is full.

    Args:
        module: Any causal language model; its mode is put back after each token.
        prompt_ids: At least one token.
        max_new_tokens: Give at most this many.
        temperature: 0 takes the likeliest token each time.
        top_p: Draw from the likeliest tokens that together have this probability.
        top_k: Draw from this many likeliest tokens; 0: no such limit.
        seed: Decides the draws; the same on every device up to rounding of the logits.
        stop_ids: Ids that end the text.
        vocab_size: Ids from here on are padding of the vocabulary and never given.

    Raises:
        ModelError: The prompt is empty or leaves no room in the context, or a setting is out of range.
    """
    _check_settings(temperature=temperature, top_p=top_p, top_k=top_k)
    room = _check_prompt(prompt_ids, max_seq_len=context_length(module))
    limit = max_new_tokens if room is None else min(max_new_tokens, room)
    return _generate(
        module,
        prompt_ids,
        limit=limit,
        choose=_Choice(temperature=temperature, top_p=top_p, top_k=top_k, seed=seed),
        stop_ids=frozenset(stop_ids),
        vocab_size=vocab_size,
    )


def context_length(module: nn.Module) -> int | None:
    """Return the most tokens a module can see, if it says so."""
    if isinstance(module, Decoder):
        return module.shape.max_seq_len
    length = getattr(getattr(module, "config", None), "max_position_embeddings", None)
    return length if isinstance(length, int) else None


def _generate(
    module: nn.Module,
    prompt_ids: Sequence[int],
    *,
    limit: int,
    choose: _Choice,
    stop_ids: frozenset[int],
    vocab_size: int | None,
) -> Iterator[int]:
    reader = _open_reader(module, max_tokens=len(prompt_ids) + limit)
    new = list(prompt_ids)
    for _ in range(limit):
        with _inference(module):
            logits_V = reader.read(new)
        token = choose(logits_V[:vocab_size])
        if token in stop_ids:
            return
        yield token
        new = [token]


class _Choice:
    """Draws a token from logits; the random numbers come from one generator on the CPU."""

    def __init__(self, *, temperature: float, top_p: float, top_k: int, seed: int) -> None:
        self._temperature = temperature
        self._top_p = top_p
        self._top_k = top_k
        self._random = torch.Generator().manual_seed(seed)

    def __call__(self, logits_V: Tensor) -> int:
        logits = logits_V.double().cpu()
        if self._temperature == 0.0:
            return int(logits.argmax())
        ordered, ids = (logits / self._temperature).sort(descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        kept = before < self._top_p
        kept[0] = True
        if self._top_k:
            kept[self._top_k :] = False
        draw = torch.multinomial(probability.where(kept, 0.0), 1, generator=self._random)
        return int(ids[draw])


class _CachedReader:
    """Reads each token once; for the reference decoder."""

    def __init__(self, module: Decoder, *, max_tokens: int) -> None:
        self._module = module
        self._cache = module.new_cache(max_tokens=max_tokens)

    def read(self, new: Sequence[int]) -> Tensor:
        """Give the logits after ``new``, which follow what was read before."""
        ids = torch.tensor([new], device=module_device(self._module))
        logits: Tensor = self._module(ids, cache=self._cache)
        return logits[0, -1]


class _HFReader:
    """Reads each token once, with the cache that a Hugging Face module gives back."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._cache: dict[str, Any] = {}

    def read(self, new: Sequence[int]) -> Tensor:
        """Give the logits after ``new``, which follow what was read before."""
        ids = torch.tensor([new], device=module_device(self._module))
        outputs = self._module(ids, use_cache=True, **self._cache)
        self._cache = {
            name: getattr(outputs, name)
            for name in _CACHE_NAMES
            if name in forward_inputs(self._module) and getattr(outputs, name, None) is not None
        }
        return logits_of(self._module, outputs, rows=ids.shape)[0, -1]

    @staticmethod
    def serves(module: nn.Module) -> bool:
        """Say whether ``module`` takes and gives back a cache under a name known here."""
        taken = forward_inputs(module)
        return "use_cache" in taken and any(name in taken for name in _CACHE_NAMES)


class _WholeReader:
    """Reads everything again for each token; for modules without a cache."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._seen: list[int] = []

    def read(self, new: Sequence[int]) -> Tensor:
        """Give the logits after ``new``, which follow what was read before."""
        self._seen += new
        ids = torch.tensor([self._seen], device=module_device(self._module))
        return call_model(self._module, {"input_ids": ids})[0, -1]


def _open_reader(module: nn.Module, *, max_tokens: int) -> _CachedReader | _HFReader | _WholeReader:
    if isinstance(module, Decoder):
        return _CachedReader(module, max_tokens=max_tokens)
    return _HFReader(module) if _HFReader.serves(module) else _WholeReader(module)


@contextmanager
def _inference(module: nn.Module) -> Iterator[None]:
    """Without dropout and gradients; the mode is put back, for training may go on between two tokens."""
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(training)


def _check_prompt(prompt_ids: Sequence[int], *, max_seq_len: int | None) -> int | None:
    """Return how many tokens have room after the prompt; None if the model sets no limit."""
    if not prompt_ids:
        raise ModelError("model.prompt_empty")
    if max_seq_len is None:
        return None
    if len(prompt_ids) >= max_seq_len:
        tokens = len(prompt_ids)
        raise ModelError("model.prompt_too_long", tokens=tokens, max_seq_len=max_seq_len, longest=max_seq_len - 1)
    return max_seq_len - len(prompt_ids)


def _check_settings(*, temperature: float, top_p: float, top_k: int) -> None:
    rules = {
        "temperature": (temperature, temperature >= 0.0),
        "top_p": (top_p, 0.0 < top_p <= 1.0),
        "top_k": (top_k, top_k >= 0),
    }
    for key, (value, fits) in rules.items():
        if not fits:
            raise ModelError("model.sampling_range", key=key, value=value, rule=say(f"model.rule_{key}"))
