"""Named tensors in a Hugging Face folder: safetensors files and, when there are several, their index."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor

from trireme.errors import ModelError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD_BYTES = 4 * 10**9
"""Largest safetensors file written; readers take any size."""


def write_tensors(folder: Path, tensors: Mapping[str, Tensor], *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write ``tensors`` in one file, or in several of at most ``shard_bytes`` and an index."""
    from safetensors.torch import save_file

    shards = list(_shards(tensors, shard_bytes))
    names = [SINGLE] if len(shards) == 1 else [_shard_name(number, len(shards)) for number in range(len(shards))]
    for file_name, shard in zip(names, shards, strict=True):
        whole = {name: tensor.detach().to("cpu").contiguous() for name, tensor in shard.items()}
        save_file(whole, folder / file_name, metadata={"format": "pt"})
    if len(shards) > 1:
        weight_map = {name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard}
        total = sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (folder / INDEX).write_text(json.dumps(index, indent=2), "utf-8")


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Read every tensor of a folder, on the CPU.

    Raises:
        ModelError: There is no safetensors file, one is missing or damaged.
    """
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            tensors.update(load_file(file))
        except Exception as error:  # the reader's own error class is not a public name in all versions
            raise ModelError("model.folder_weights_bad", path=file, reason=error) from error
    return tensors


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read name and shape of every tensor from the files' headers alone.

    Raises:
        ModelError: There is no safetensors file, one is missing or damaged.
    """
    from safetensors import safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                shapes.update({name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()})  # noqa: SIM118
        except Exception as error:
            raise ModelError("model.folder_weights_bad", path=file, reason=error) from error
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """List a folder's safetensors files: those the index names, else the single one.

    Raises:
        ModelError: There are none, or the index can't be read.
    """
    if (folder / INDEX).is_file():
        try:
            weight_map = json.loads((folder / INDEX).read_text("utf-8"))["weight_map"]
            return [folder / name for name in sorted(set(weight_map.values()))]
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ModelError("model.folder_weights_bad", path=folder / INDEX, reason=repr(error)) from error
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    raise ModelError("model.folder_no_weights", path=folder)


def has_weights(folder: Path) -> bool:
    """Say whether a folder has safetensors."""
    return (folder / INDEX).is_file() or (folder / SINGLE).is_file()


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size_bytes = 0
    for name, tensor in tensors.items():
        if shard and size_bytes + tensor.nbytes > shard_bytes:
            yield shard
            shard, size_bytes = {}, 0
        shard[name] = tensor
        size_bytes += tensor.nbytes
    yield shard


def _shard_name(number: int, count: int) -> str:
    return f"model-{number + 1:05d}-of-{count:05d}.safetensors"
