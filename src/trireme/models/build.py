"""From the section ``model`` to a module with its initial weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from trireme.config import ModelSection
from trireme.graph import DecoderShape, check_model_section, resolve_shape
from trireme.models.decoder import Decoder, meta_decoder
from trireme.models.factory import build_from_factory
from trireme.models.hf_module import build_hf_module, check_fits_data
from trireme.models.initial import initialise


def build_model(
    model: ModelSection,
    *,
    vocab_size: int,
    seq_len: int,
    seed: int,
    device: torch.device | None = None,
    notice: Callable[[str], None] = lambda _line: None,
) -> nn.Module:
    """Build what ``model`` names, in fp32 on the CPU, with its initial weights.

    Args:
        model: Exactly one of ``name``, ``factory`` and ``path`` is set.
        vocab_size: The tokenizer's vocabulary.
        seq_len: Tokens a training sequence predicts.
        seed: Decides the initial weights; a named size's are counter-based, see ``initial``.
        device: ``torch.device("meta")`` gives a named size without storage or weights.
        notice: Told in one line what was decided without being asked for.

    Raises:
        ModelError: The section contradicts itself, the data or the folder; see the message.
    """
    check_model_section(model)
    if model.factory is not None:
        built = build_from_factory(model.factory, model.factory_args, seed=seed)
        check_fits_data(built, vocab_size=vocab_size, seq_len=seq_len)
        return built
    if model.path is not None:
        built = build_hf_module(Path(model.path).expanduser(), seed=seed, notice=notice)
        check_fits_data(built, vocab_size=vocab_size, seq_len=seq_len)
        return built
    shape = resolve_shape(model, vocab_size=vocab_size, seq_len=seq_len, notice=notice)
    return meta_decoder(shape) if device is not None and device.type == "meta" else build_decoder(shape, seed=seed)


def build_decoder(shape: DecoderShape, *, seed: int) -> Decoder:
    """Build a reference decoder in fp32 on the CPU with the initial weights of ``seed``."""
    with torch.device("meta"):
        decoder = Decoder(shape, dropout_seed=seed)
    decoder.to_empty(device="cpu")
    initialise(decoder, seed=seed, num_layers=shape.num_layers)
    return decoder
