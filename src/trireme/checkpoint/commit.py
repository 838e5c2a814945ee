"""The last act of a save: the manifest in two copies, then the name; and what must hold before it begins."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trireme.checkpoint.deal import TensorNote
from trireme.checkpoint.folder import commit_folder, new_save_id, step_folders, sync_folder
from trireme.checkpoint.manifest import COPY_NAME, MANIFEST_NAME, format_manifest
from trireme.checkpoint.read import read_manifest
from trireme.checkpoint.record import Manifest, SliceRecord, TensorRecord
from trireme.checkpoint.shard import WrittenShard
from trireme.errors import CheckpointError
from trireme.units import format_bytes

_BYTES_PER_NAME = 1024
"""Manifest, its copy and the shard's header take about this much for a tensor: for the space foreseen."""


def blank_manifest(
    *, step: int, state: Mapping[str, Any], metrics: Mapping[str, float], run_id: str, layout: str, finite: bool
) -> Manifest:
    """Return what can be said of a checkpoint before anything is written."""
    import torch

    import trireme

    return Manifest(
        save_id="",
        run_id=run_id,
        step=step,
        sequence=0,
        created_at_s=time.time(),
        layout=layout,
        finite=finite,
        save_retries=0,
        versions={
            "trireme": trireme.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        metrics={name: float(value) for name, value in metrics.items()},
        state=state,
        shards={},
        tensors={},
    )


def fill_manifest(
    blank: Manifest, *, save_id: str, retries: int, tensors: Iterable[TensorNote], shards: Sequence[WrittenShard]
) -> Manifest:
    """Return the manifest of what was written."""
    slices: dict[str, list[SliceRecord]] = defaultdict(list)
    for shard in shards:
        for name, piece in shard.slices:
            slices[name].append(piece)
    records = {
        note.name: TensorRecord(
            name=note.name,
            shape=note.shape,
            dtype=note.dtype,
            slices=tuple(slices[note.same_as or note.name]),
            same_as=note.same_as,
        )
        for note in tensors
    }
    files = {shard.record.file: shard.record for shard in shards}
    return replace(blank, save_id=save_id, save_retries=retries, shards=files, tensors=records)


def write_manifests(folder: Path, manifest: Manifest) -> None:
    """Write the manifest and its copy, durably."""
    text = format_manifest(manifest)
    for name in (COPY_NAME, MANIFEST_NAME):
        with open(folder / name, "xb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    sync_folder(folder)


def commit_save(folder: Path, target: Path, manifest: Manifest) -> None:
    """Give a folder whose files are all there its name."""
    commit_folder(folder, target, manifest.save_id)


def older_manifests(root: Path) -> dict[Path, Manifest]:
    """Return the manifests of the root's checkpoints that can be read; a damaged one is its reader's matter."""
    found: dict[Path, Manifest] = {}
    for folder in step_folders(root):
        if not folder.is_checkpoint:
            continue
        try:
            found[folder.path] = read_manifest(folder.path, notice=_unheard)
        except CheckpointError:
            continue
    return found


def next_in_line(blank: Manifest, *, target: Path, older: Mapping[Path, Manifest]) -> Manifest:
    """Number a save after all that are there.

    Raises:
        CheckpointError: The step's folder is another run's.
    """
    if target in older and older[target].run_id != blank.run_id:
        raise CheckpointError(
            "checkpoint.other_run", path=target, found=older[target].run_id or "-", wanted=blank.run_id or "-"
        )
    return replace(blank, sequence=1 + max((each.sequence for each in older.values()), default=0))


def make_root(root: Path) -> None:
    """Make the folder of checkpoints.

    Raises:
        CheckpointError: It can't be made.
    """
    try:
        if not root.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            sync_folder(root.parent)
    except OSError as error:
        raise CheckpointError("checkpoint.unwritable", path=root, reason=error.strerror) from error


def begin_save(root: Path, *, step: int, value_bytes: int, num_tensors: int) -> tuple[str, Path]:
    """Return the id of a new save and the folder, made here, that all ranks write into.

    Raises:
        CheckpointError: There is no room for it, or the storage can't be written.
    """
    make_root(root)
    check_space(root, needed_bytes(value_bytes=value_bytes, num_tensors=num_tensors))
    save_id = new_save_id()
    folder = root / f"step-{step}.inprogress-{save_id}"
    try:
        folder.mkdir()
    except OSError as error:
        raise CheckpointError("checkpoint.unwritable", path=root, reason=error.strerror) from error
    return save_id, folder


def needed_bytes(*, value_bytes: int, num_tensors: int) -> int:
    """Return the room a checkpoint takes, roughly."""
    return value_bytes + _BYTES_PER_NAME * (num_tensors + 16)


def check_space(root: Path, needed: int) -> None:
    """Raise unless a checkpoint has room.

    Raises:
        CheckpointError: It has none.
    """
    if needed > shutil.disk_usage(root).free:
        raise no_space(root, needed=needed)


def no_space(root: Path, *, needed: int) -> CheckpointError:
    """Return the error of a full disk."""
    free_bytes = shutil.disk_usage(root).free
    # What was written is taken back by now, so the room left may look like enough: others write too, or blocks are big.
    key = "checkpoint.no_space" if needed > free_bytes else "checkpoint.space_ran_out"
    return CheckpointError(key, path=root, needed=format_bytes(needed), free=format_bytes(free_bytes))


def _unheard(text: str) -> None:
    """Drop a remark about an older checkpoint: it is made when that one is opened."""
