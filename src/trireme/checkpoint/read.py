"""Opening a checkpoint: nothing is trusted before it is verified, nothing is ever unpickled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trireme.checkpoint.folder import step_folders
from trireme.checkpoint.manifest import COPY_NAME, MANIFEST_NAME, parse_manifest
from trireme.checkpoint.ranges import full_ranges
from trireme.checkpoint.record import Manifest, Ranges, SliceRecord, TensorRecord
from trireme.checkpoint.scatter import read_slice_into
from trireme.checkpoint.shard import check_shard, check_slice
from trireme.errors import CheckpointError
from trireme.words import say

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A committed checkpoint; tensors are read a part at a time. ``verified``: every byte was hashed already."""

    path: Path
    manifest: Manifest
    verified: bool = False

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
        self.read_into(name, whole)
        return whole

    def read_into(self, name: str, target: torch.Tensor, *, ranges: Ranges | None = None) -> None:
        """Fill ``target``, on any device, with the part of a tensor that ``ranges`` names; default: all of it.

        Reads what it needs and, beside the target, holds a few megabytes at most. If the checkpoint wasn't verified
        when it was opened, slices are read whole and hashed on the way.

        Raises:
            CheckpointError: There is no tensor of that name, or its bytes aren't those that were saved.
        """
        record = self._record(name)
        wanted = full_ranges(record.shape) if ranges is None else ranges
        for piece in record.slices:
            read_slice_into(self.path, name, piece, target, ranges=wanted, check=not self.verified)

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
    checkpoint = Checkpoint(path=path, manifest=manifest, verified=verify)
    if verify:
        check_slices(checkpoint)
    return checkpoint


def check_slices(checkpoint: Checkpoint, *, part: int = 0, num_parts: int = 1) -> None:
    """Hash all tensors, or one of so many parts of about as many bytes, for ranks that share the work.

    Raises:
        CheckpointError: One is damaged.
    """
    pieces = _slices(checkpoint.manifest)
    total_bytes = sum(piece.size_bytes for _, piece in pieces)
    first, last = total_bytes * part // num_parts, total_bytes * (part + 1) // num_parts
    done_bytes = 0
    for name, piece in pieces:
        # Each slice belongs to the part where its first byte lies; an empty one has nothing to be damaged.
        if first <= done_bytes < last:
            check_slice(checkpoint.path, name, piece)
        done_bytes += piece.size_bytes


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
