"""Write a model as a Hugging Face folder, whole or not at all, checked against the model's definition."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.models.decoder import Decoder, meta_decoder
from trireme.models.hf_module import expected_shapes, is_hf_module, save_hf_module
from trireme.models.llama_config import MARK, SpecialIds, config_of_shape, generation_config, read_config
from trireme.models.tensor_folder import read_shapes, write_tensors
from trireme.models.tokenizer_folder import copy_tokenizer, read_special_ids
from trireme.models.weights import raise_if_different

_PREFIX = "model."
_HEAD = "lm_head.weight"


def save_folder(
    module: nn.Module,
    *,
    path: str | Path,
    tokenizer_folder: str | Path | None = None,
    overwrite: bool = False,
    shard_bytes: int | None = None,
) -> Path:
    """Write ``module`` so that ``AutoModelForCausalLM.from_pretrained(path)`` gives the same logits.

    A ``Decoder`` is written as a Llama. The folder appears complete or not at all: it is built beside
    ``path``, every tensor's shape is compared with the model's definition, then it takes the name.

    Args:
        module: A ``Decoder`` or a module of the transformers library.
        path: The folder.
        tokenizer_folder: Tokenizer files to copy in; their special ids go into the configs.
        overwrite: Replace a folder that is there.
        shard_bytes: Largest safetensors file.

    Raises:
        ModelError: The folder is there, can't be written, the module has no such form, or a tensor hasn't
            the shape that the model's definition gives it.
    """
    if not isinstance(module, Decoder) and not is_hf_module(module):
        raise ModelError("model.not_a_hf_module", kind=type(module).__name__)
    tokenizer_folder = Path(tokenizer_folder) if tokenizer_folder else None
    special = read_special_ids(tokenizer_folder) if tokenizer_folder else SpecialIds()
    with _committed(Path(path), overwrite=overwrite) as folder:
        if isinstance(module, Decoder):
            expected = _write_decoder(module, folder, special, shard_bytes)
        else:
            expected = _write_hf(module, folder)
        _check_written(read_shapes(folder), expected)
        if tokenizer_folder:
            copy_tokenizer(tokenizer_folder, folder)
    return Path(path)


def llama_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename a decoder's tensors to those of a Llama folder."""
    return {name if name == _HEAD else _PREFIX + name: tensor for name, tensor in tensors.items()}


def decoder_names(tensors: Mapping[str, Tensor], *, tied: bool) -> dict[str, Tensor]:
    """Rename a Llama folder's tensors to a decoder's; a tied head written out once more is left aside."""
    return {name.removeprefix(_PREFIX): tensor for name, tensor in tensors.items() if not (tied and name == _HEAD)}


def _write_decoder(
    module: Decoder, folder: Path, special: SpecialIds, shard_bytes: int | None
) -> dict[str, tuple[int, ...]]:
    tensors = llama_names(module.state_dict())
    dtype = str(module.embed_tokens.weight.dtype).removeprefix("torch.")
    write_tensors(folder, tensors, **({"shard_bytes": shard_bytes} if shard_bytes else {}))
    _write_json(folder / "config.json", config_of_shape(module.shape, dtype=dtype, special=special))
    _write_json(folder / "generation_config.json", generation_config(special))
    defined = llama_names(meta_decoder(module.shape).state_dict())
    return {name: tuple(tensor.shape) for name, tensor in defined.items()}


def _write_hf(module: nn.Module, folder: Path) -> dict[str, tuple[int, ...]]:
    """Write all of a Hugging Face module's tensors; of those it ties, only what its own writer keeps."""
    tensors = module.state_dict()
    save_hf_module(module, folder, tensors=dict(tensors))
    _unmark(folder)
    written = read_shapes(folder)
    by_storage = {tensor.data_ptr(): name for name, tensor in tensors.items() if name in written}
    tied = {name for name, tensor in tensors.items() if name not in written and tensor.data_ptr() in by_storage}
    return {name: shape for name, shape in expected_shapes(module).items() if name not in tied}


def _unmark(folder: Path) -> None:
    """Take the mark off that a folder once written from a ``Decoder`` left in the module's config."""
    config = read_config(folder)
    if config.pop(MARK, None) is not None:
        _write_json(folder / "config.json", config)


def _check_written(found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]) -> None:
    for name, shape in expected.items():
        if name in found and tuple(found[name]) != tuple(shape):
            raise ModelError("model.written_wrong", name=name, found=list(found[name]), expected=list(shape))
    raise_if_different(
        missing=[name for name in expected if name not in found],
        unexpected=[name for name in found if name not in expected],
        mis_shaped=(),
    )


@contextmanager
def _committed(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Give a folder beside ``path`` to write in; it takes the name when all went well, else it is gone."""
    occupied = path.exists() and (not path.is_dir() or any(path.iterdir()))
    if occupied and not overwrite:
        raise ModelError("model.folder_exists", path=path)
    building = path.parent / f".{path.name}.writing-{os.getpid()}"
    try:
        building.mkdir(parents=True, exist_ok=True)
        yield building
        _sync(building)
        _take_name(building, path)
    except OSError as error:
        raise ModelError("model.folder_unwritable", path=path, reason=error.strerror or error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _take_name(building: Path, path: Path) -> None:
    replaced = path.parent / f".{path.name}.replaced-{os.getpid()}"
    if path.exists():
        path.rename(replaced)
    building.rename(path)
    if replaced.is_dir():
        shutil.rmtree(replaced)
    else:
        replaced.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Have the files on disk before the name says they are complete."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.fsync(opened.fileno())


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")
