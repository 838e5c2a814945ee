"""Read a model folder back: what was saved from a ``Decoder`` is one again, all else is transformers'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from trireme.errors import ModelError
from trireme.models.decoder import Decoder, meta_decoder
from trireme.models.hf_module import build_hf_module
from trireme.models.llama_config import MARK, read_config, shape_of_config
from trireme.models.save import decoder_names
from trireme.models.tensor_folder import read_tensors
from trireme.models.weights import load_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model and the folder its tokenizer's files are in, if it has one."""

    model: nn.Module
    tokenizer_folder: Path | None


def load_folder(path: Path, *, notice: Callable[[str], None] = lambda _line: None) -> Loaded:
    """Read the model of a folder, in fp32 on the CPU, ready to generate.

    A folder that ``save_folder`` wrote from a ``Decoder`` (config.json marks it) needs no transformers and
    gives a ``Decoder``; any other gives the module transformers has for it.

    Raises:
        ModelError: The folder is missing or damaged, or its weights don't fit its config.
    """
    folder = Path(path)
    marked = MARK in read_config(folder)
    model = load_decoder(folder) if marked else build_hf_module(folder, seed=0, notice=notice)
    tokenizer = folder if (folder / "tokenizer.json").is_file() else None
    return Loaded(model=model.eval(), tokenizer_folder=tokenizer)


def load_decoder(path: Path) -> Decoder:
    """Read a Llama folder into the reference decoder, without transformers.

    Raises:
        ModelError: The model has something the decoder lacks (biases, scaled rotary positions ...), or the
            folder is damaged.
    """
    folder = Path(path)
    shape = shape_of_config(read_config(folder), folder=folder)
    decoder = meta_decoder(shape).to_empty(device=torch.device("cpu"))
    load_folder_weights(decoder, folder)
    return decoder


def load_folder_weights(module: nn.Module, path: Path) -> None:
    """Copy a folder's weights into a module that is there, strictly, in place.

    Raises:
        ModelError: A tensor is missing, unexpected or of another shape, or the folder is damaged.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ModelError("model.folder_missing", path=folder)
    tensors = read_tensors(folder)
    if isinstance(module, Decoder):
        tensors = decoder_names(tensors, tied=module.shape.tie_embeddings)
    load_weights(module, tensors)
