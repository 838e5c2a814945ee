"""Modules without contents: built only to see what they are made of."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.models.call import call_model
from trireme.models.factory import build_from_factory, find_factory
from trireme.models.hf_module import build_hf_bare
from trireme.words import say

BATCH = "batch"
"""A function of this name beside a factory makes inputs: ``batch(seed, seqs, seq_len)``."""


class Bare(NamedTuple):
    """A module, how inputs of it are made (of so many sequences, so long), and how it is called with them."""

    module: nn.Module
    batch: Callable[[int, int], Mapping[str, Tensor]]
    call: Callable[[nn.Module, Mapping[str, Tensor]], Any]


def bare_from_factory(factory: str, arguments: Mapping[str, Any], *, notice: Callable[[str], None]) -> Bare:
    """Build what a factory builds without its contents; with them where its code asks for values as it builds.

    Raises:
        ModelError: As for :func:`build_from_factory`.
    """
    found = find_factory(factory)
    try:
        with torch.device("meta"):
            module = build_from_factory(factory, arguments, seed=0)
    except ModelError:
        module = build_from_factory(factory, arguments, seed=0)
        notice(say("capture.built", factory=factory))
    make = getattr(found.module, BATCH, None)
    if not callable(make):
        return Bare(module.train(), token_batch, call_model)
    return Bare(module.train(), lambda seqs, seq_len: make(0, seqs, seq_len), _call_by_name)


def bare_from_config(path: str) -> Bare:
    """Build the model of a config.json, or of a folder with one, without contents, by the transformers library.

    Raises:
        ModelError: It isn't installed, doesn't know the family, or can't build the model.
    """
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    module = build_hf_bare(file, json.loads(file.read_text(encoding="utf-8"))).train()
    main = getattr(module, "main_input_name", "input_ids")
    config: Any = module.config
    if main == "pixel_values":
        side, channels = int(config.image_size), int(getattr(config, "num_channels", 3))
        return Bare(module, lambda seqs, _: {main: torch.zeros(seqs, channels, side, side)}, _call_by_name)
    if main != "input_ids":
        raise ModelError("capture.other_input", path=file, kind=type(module).__name__, input=main)
    if config.is_encoder_decoder:
        return Bare(module, lambda *size: {**token_batch(*size), "decoder_input_ids": _tokens(*size)}, _call_by_name)
    return Bare(module, token_batch, _call_plain)


def token_batch(seqs: int, seq_len: int) -> dict[str, Tensor]:
    """Inputs of a language model; contents don't matter."""
    return {"input_ids": _tokens(seqs, seq_len)}


def _tokens(seqs: int, seq_len: int) -> Tensor:
    return torch.zeros((seqs, seq_len), dtype=torch.long)


def _call_by_name(module: nn.Module, batch: Mapping[str, Tensor]) -> Any:
    taken = inspect.signature(module.forward).parameters
    more = {"use_cache": False} if "use_cache" in taken else {}
    return module(**{key: value for key, value in batch.items() if key in taken}, **more)


def _call_plain(module: nn.Module, batch: Mapping[str, Tensor]) -> Any:
    return call_model(module, batch)
