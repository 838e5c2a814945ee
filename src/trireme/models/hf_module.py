"""Modules of the transformers library, from local folders only; the one file that imports it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.graph import check_seq_len, check_vocab_size
from trireme.models.llama_config import read_config
from trireme.models.tensor_folder import has_weights
from trireme.models.weights import raise_if_different
from trireme.words import say


def build_hf_module(folder: Path, *, seed: int, notice: Callable[[str], None]) -> nn.Module:
    """Build the causal language model of a folder in fp32 and load its weights strictly.

    A folder with a config.json and no weights gives random ones, by ``seed``, and says so.

    Raises:
        ModelError: transformers is missing, the folder can't be used, or a tensor is missing, unexpected
            or of another shape.
    """
    read_config(folder)
    with _offline(folder) as transformers:
        config = _config(transformers, folder)
        if has_weights(folder):
            return _load_strictly(transformers, folder, config)
        notice(say("model.folder_random", path=folder))
        return _build(transformers, folder, config, seed=seed)


def check_fits_data(module: nn.Module, *, vocab_size: int, seq_len: int) -> None:
    """Check a Hugging Face module's context and vocabulary against the data, as far as its config tells.

    Raises:
        ModelError: One of them is too small.
    """
    config = getattr(module, "config", None)
    max_seq_len = getattr(config, "max_position_embeddings", None)
    if isinstance(max_seq_len, int):
        check_seq_len(seq_len, max_seq_len=max_seq_len)
    rows = getattr(config, "vocab_size", None)
    if isinstance(rows, int):
        check_vocab_size(rows, tokenizer_vocab_size=vocab_size)


def is_hf_module(module: nn.Module) -> bool:
    """Say whether a module is of the transformers library, without importing it."""
    return hasattr(module, "save_pretrained") and hasattr(module, "config")


def expected_shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    """Give the shapes that a Hugging Face module's config defines, built anew without storage."""
    with _offline(Path(".")) as transformers, torch.device("meta"):
        fresh = transformers.AutoModelForCausalLM.from_config(module.config)
    return {name: tuple(tensor.shape) for name, tensor in fresh.state_dict().items()}


def save_hf_module(module: Any, folder: Path, *, tensors: dict[str, Tensor]) -> None:
    """Let a Hugging Face module write its own folder with ``tensors`` as its weights."""
    with _offline(folder):
        module.save_pretrained(folder, state_dict=tensors, safe_serialization=True)


_SHOWN = 200
"""Characters of an error of theirs that are shown: some list every class there is."""


def build_hf_bare(file: Path, values: dict[str, Any]) -> nn.Module:
    """Build the model that the mapping of a config.json means, without storage: its own class, else one with a head.

    Raises:
        ModelError: transformers is missing, doesn't know the family, or refuses the settings.
    """
    with _offline(file) as transformers:
        try:
            family = values.get("model_type", "")
            config = transformers.AutoConfig.for_model(family, **{k: v for k, v in values.items() if k != "model_type"})
        except (ValueError, KeyError, TypeError) as error:
            reason = _first_line(error).partition(" Should have")[0]
            raise ModelError("model.folder_config_bad", path=file, reason=reason[:_SHOWN]) from error
        with torch.device("meta"):
            return _bare(transformers, file, config, [str(each) for each in values.get("architectures") or ()])


def _bare(transformers: ModuleType, file: Path, config: Any, named: list[str]) -> nn.Module:
    own = [getattr(transformers, name) for name in named if hasattr(transformers, name)]
    automatic = ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel")
    ways = [kind._from_config for kind in own] + [getattr(transformers, name).from_config for name in automatic]
    reason = ""
    for way in ways:
        try:
            module: nn.Module = way(config)
        except Exception as error:
            reason = reason or _first_line(error)
        else:
            return module
    raise ModelError("model.folder_config_bad", path=file, reason=reason)


def _build(transformers: ModuleType, folder: Path, config: Any, *, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module: nn.Module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        except ValueError as error:
            raise ModelError("model.folder_config_bad", path=folder, reason=_first_line(error)) from error
    return module


def _load_strictly(transformers: ModuleType, folder: Path, config: Any) -> nn.Module:
    try:
        module, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # so that they are listed; they are an error below
        )
    except Exception as error:
        raise ModelError("model.folder_weights_bad", path=folder, reason=_first_line(error)) from error
    raise_if_different(
        missing=sorted(report["missing_keys"]),
        unexpected=sorted(report["unexpected_keys"]),
        mis_shaped=sorted(report["mismatched_keys"]),
    )
    loaded: nn.Module = module
    return loaded


def _config(transformers: ModuleType, folder: Path) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise ModelError("model.folder_config_bad", path=folder, reason=_first_line(error)) from error


@contextmanager
def _offline(folder: Path) -> Iterator[ModuleType]:
    """Import transformers with the hub switched off and its progress bars silent."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise ModelError("model.needs_hf", path=folder) from error
    logging: Any = transformers.utils.logging
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
