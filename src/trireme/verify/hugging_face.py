"""Modules of the transformers library: built from a folder or a config.json, with the batches their kind takes."""

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
from trireme.verify.batch import causal_batch
from trireme.verify.twin import shrink_config
from trireme.words import say

_WEIGHTS = ("*.safetensors", "*.bin")


def build(path: Path, *, seed: int, shrink: bool) -> nn.Module:
    """Build the model of a folder or a config.json; weights are read from a folder that has them, else random.

    Args:
        path: A folder with a config.json, or that file itself.
        seed: Decides random weights.
        shrink: Build a small twin with the same graph instead, with random weights.

    Raises:
        ModelError: The file can't be read, or transformers doesn't know or can't build the model.
    """
    folder = path if path.is_dir() else path.parent
    if not (path.is_file() or (path / "config.json").is_file()):
        raise ModelError("verify.no_config", path=path)
    with _offline() as transformers:
        config = _config(transformers, path)
        if shrink:
            config = shrink_config(config, path=path)
        kind = _class_of(transformers, config)
        has_weights = path.is_dir() and not shrink and any(any(folder.glob(each)) for each in _WEIGHTS)
        return _make(kind, config, folder if has_weights else None, path=path, seed=seed)


def make_comparable(module: nn.Module, *, dtype: str) -> list[str]:
    """Choose experts that can be computed in this number format; return what to tell."""
    config = getattr(module, "config", None)
    choose = getattr(module, "set_experts_implementation", None)
    if dtype != "fp64" or choose is None or getattr(config, "_experts_implementation", None) != "grouped_mm":
        return []
    if not any("experts" in name for name, _ in module.named_parameters()):
        return []
    choose("batched_mm")
    return [say("verify.batched_experts")]


def batch_of(module: nn.Module) -> Callable[[int, int, int], dict[str, Any]] | None:
    """Give batches for what a module of transformers takes in first; None for other modules and other inputs."""
    config = getattr(module, "config", None)
    name = getattr(module, "main_input_name", None)
    if config is None or not hasattr(module, "save_pretrained"):
        return None
    if name == "pixel_values" and hasattr(config, "image_size"):
        return lambda seed, seqs, seq_len: _images(config, seed, seqs)
    if name == "input_ids" and getattr(config, "is_encoder_decoder", False):
        return lambda seed, seqs, seq_len: _pairs(config, seed, seqs, seq_len)
    if name == "input_ids" and isinstance(getattr(config, "vocab_size", None), int):
        return lambda seed, seqs, seq_len: causal_batch(seed, seqs, seq_len, vocab_size=config.vocab_size)
    return None


def _images(config: Any, seed: int, seqs: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = config.image_size if isinstance(config.image_size, int) else config.image_size[0]
    images = torch.randn(seqs, getattr(config, "num_channels", 3), size, size, generator=generator)
    return {"pixel_values": images, "labels": torch.randint(config.num_labels, (seqs,), generator=generator)}


def _pairs(config: Any, seed: int, seqs: int, seq_len: int) -> dict[str, Tensor]:
    """Sources padded to unequal lengths, and the ids that each target id follows."""
    source = causal_batch(seed, seqs, seq_len, vocab_size=config.vocab_size)
    target = causal_batch(seed + 1, seqs, max(2, seq_len // 2), vocab_size=config.vocab_size)
    generator = torch.Generator().manual_seed(seed + 2)
    lengths = torch.randint(seq_len // 2, seq_len + 1, (seqs, 1), generator=generator)
    return {
        "input_ids": source["input_ids"],
        "attention_mask": (torch.arange(seq_len) < lengths).long(),
        "decoder_input_ids": target["input_ids"],
        "labels": target["labels"],
    }


def _config(transformers: ModuleType, path: Path) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    except Exception as error:
        raise ModelError("verify.config_bad", path=path, reason=_first_line(error)) from error


def _class_of(transformers: ModuleType, config: Any) -> Any:
    """The class that the config names, else the causal language model of its family."""
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    return transformers.AutoModelForCausalLM


def _make(kind: Any, config: Any, folder: Path | None, *, path: Path, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            if folder is not None:
                built: nn.Module = kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
            elif kind.__name__.startswith("Auto"):
                built = kind.from_config(config, dtype=torch.float32)
            else:
                built = kind(config)
        except Exception as error:
            raise ModelError("verify.config_bad", path=path, reason=_first_line(error)) from error
    return built.train()


@contextmanager
def _offline() -> Iterator[ModuleType]:
    """Import transformers with the hub switched off and silent."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        import transformers
    except ImportError as error:
        raise ModelError("verify.needs_hf") from error
    logging: Any = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield transformers
    finally:
        logging.set_verbosity(verbosity)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
