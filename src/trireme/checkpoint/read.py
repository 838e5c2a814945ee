"""Opening a checkpoint: nothing is trusted before it is verified, nothing is ever unpickled."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trireme.checkpoint.folder import step_folders
from trireme.checkpoint.manifest import COPY_NAME, MANIFEST_NAME, parse_manifest
from trireme.checkpoint.record import Manifest, Ranges, SliceRecord, TensorRecord
from trireme.checkpoint.shard import bytes_of, check_shard, check_slice, read_slice
from trireme.errors import CheckpointError
from trireme.words import say

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint; tensors are read one at a time, each checked against its hash."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """Return the optimizer steps done."""
        return self.manifest.step

    @property
    def state(self) -> Mapping[str, Any]:
        """Return what was saved beside the tensors."""
        return self.manifest.state

    @property
    def metrics(self) -> Mapping[str, float]:
        """Return the numbers of this step."""
        return self.manifest.metrics

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all tensors, tied ones included."""
        return tuple(self.manifest.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the global shape of a tensor."""
        return self._record(name).shape

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor."""
        import torch

        found: torch.dtype = getattr(torch, self._record(name).dtype)
        return found

    def tensor(self, name: str) -> torch.Tensor:
        """Return a tensor, whole, on the CPU.

        Raises:
            CheckpointError: There is none of that name, or its bytes aren't those that were saved.
        """
        import torch

        record = self._record(name)
        whole = torch.empty(record.shape, dtype=self.dtype(name))
        for piece in record.slices:
            if piece.shape == record.shape:
                read_slice(self.path, name, piece, bytes_of(whole))
                continue
            block = torch.empty(piece.shape, dtype=whole.dtype)
            read_slice(self.path, name, piece, bytes_of(block))
            _place(block, whole, piece.ranges)
        return whole

    def first_names(self) -> dict[str, str]:
        """Return for every name the name that it is tied to, mostly itself."""
        return {name: record.same_as or name for name, record in self.manifest.tensors.items()}

    def _record(self, name: str) -> TensorRecord:
        if name not in self.manifest.tensors:
            raise CheckpointError("checkpoint.no_tensor", path=self.path, name=name)
        return self.manifest.tensors[name]


def open_checkpoint(path: Path, *, verify: bool = True, notice: Callable[[str], None] = warnings.warn) -> Checkpoint:
    """Return the checkpoint in a folder, verified.

    Args:
        path: Its folder, ``.../step-N``.
        verify: Hash every tensor now; otherwise only manifest, file lengths and headers are checked
            now, and each tensor when it is read.
        notice: Told about damage that a second copy made good.

    Raises:
        CheckpointError: It is no committed checkpoint, or anything in it is missing or damaged.
    """
    path = Path(path)
    _check_place(path)
    manifest = read_manifest(path, notice=notice)
    for shard in manifest.shards.values():
        check_shard(path, shard, save_id=manifest.save_id)
    if verify:
        for name, piece in _slices(manifest):
            check_slice(path, name, piece)
    return Checkpoint(path=path, manifest=manifest)


def read_manifest(folder: Path, *, notice: Callable[[str], None]) -> Manifest:
    """Return the manifest of a folder: the first copy, or the second with a notice if the first is damaged.

    Raises:
        CheckpointError: Neither copy can be used.
    """
    first, copy = _try_manifest(folder / MANIFEST_NAME), _try_manifest(folder / COPY_NAME)
    if isinstance(first, CheckpointError):
        if isinstance(copy, CheckpointError):
            raise first
        notice(say("checkpoint.using_copy", reason=first, copy=COPY_NAME))
        return copy
    if isinstance(copy, CheckpointError):
        notice(say("checkpoint.copy_damaged", reason=copy))
    elif copy.save_id != first.save_id:
        raise CheckpointError(
            "checkpoint.other_save", path=folder / COPY_NAME, found=copy.save_id, wanted=first.save_id
        )
    return first


def _try_manifest(path: Path) -> Manifest | CheckpointError:
    try:
        return parse_manifest(path.read_bytes(), path=path)
    except CheckpointError as error:
        return error
    except OSError as error:
        return CheckpointError("checkpoint.manifest_missing", path=path, reason=error.strerror)


def _check_place(path: Path) -> None:
    if not path.is_dir():
        raise CheckpointError("checkpoint.no_folder", path=path)
    if any(mark in path.name for mark in (".inprogress-", ".deleting-")):
        raise CheckpointError("checkpoint.unfinished", path=path)
    steps = [folder for folder in step_folders(path) if folder.is_checkpoint]
    if steps:
        raise CheckpointError("checkpoint.is_root", path=path, example=steps[-1].path.name)


def _slices(manifest: Manifest) -> list[tuple[str, SliceRecord]]:
    """Return every slice once, in the order of the files: one pass over the disk."""
    pieces = [
        (record.name, piece)
        for record in manifest.tensors.values()
        if record.same_as is None
        for piece in record.slices
    ]
    return sorted(pieces, key=lambda pair: (pair[1].file, pair[1].offset_bytes))


def _place(block: torch.Tensor, whole: torch.Tensor, ranges: Ranges) -> None:
    """Copy a block to its ranges of the whole tensor, which may be several in a dimension."""
    for corner in itertools.product(*(_with_offsets(dim) for dim in ranges)):
        inside = tuple(slice(start, start + length) for start, _, length in corner)
        outside = tuple(slice(start, start + length) for _, start, length in corner)
        whole[outside] = block[inside]


def _with_offsets(dim: tuple[tuple[int, int], ...]) -> list[tuple[int, int, int]]:
    starts = itertools.accumulate((length for _, length in dim), initial=0)
    return [(inner, outer, length) for inner, (outer, length) in zip(starts, dim, strict=False)]
