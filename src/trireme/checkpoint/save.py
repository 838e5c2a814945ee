"""Saving: all of a step or nothing of it.

Everything is written into a folder of its own, made durable, and only then given its name. Files of
an older checkpoint are never touched, so a kill at any moment costs at most the save in progress.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trireme.checkpoint.coverage import full_ranges
from trireme.checkpoint.folder import commit_folder, new_save_id, step_folders, sync_folder
from trireme.checkpoint.manifest import COPY_NAME, MANIFEST_NAME, format_manifest
from trireme.checkpoint.read import read_manifest
from trireme.checkpoint.record import Manifest, TensorRecord
from trireme.checkpoint.shard import ShardEntry, WrittenShard, write_shard
from trireme.checkpoint.state_json import encode_state
from trireme.checkpoint.stored_type import STORED_TYPES
from trireme.checkpoint.tie import first_names
from trireme.errors import CheckpointError
from trireme.units import format_bytes
from trireme.words import say

if TYPE_CHECKING:
    import torch

_SHARD_NAME = "shard-00000.safetensors"
_BYTES_PER_NAME = 1024
"""Manifest, its copy and the shard's header take about this much for a tensor: for the space foreseen."""

_FULL = (errno.ENOSPC, errno.EDQUOT)
_HOPELESS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR)


class SaveStage(Enum):
    """A moment of a save, for hooks that inject faults."""

    BEFORE_SHARD = "before_shard"
    BEFORE_MANIFEST = "before_manifest"
    BEFORE_COMMIT = "before_commit"


Hook = Callable[[SaveStage, Path], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What one save is about, the same for every attempt."""

    root: Path
    target: Path
    tensors: Mapping[str, torch.Tensor]
    manifest: Manifest
    hook: Hook


def _no_hook(stage: SaveStage, folder: Path) -> None:
    """Do nothing: the hook of a save that nobody disturbs."""


def save_checkpoint(
    root: Path,
    *,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    metrics: Mapping[str, float] = MappingProxyType({}),
    run_id: str = "",
    layout: str = "dp=1",
    finite: bool = True,
    max_retries: int = 3,
    backoff_s: float = 0.5,
    notice: Callable[[str], None] = warnings.warn,
    hook: Hook = _no_hook,
) -> Path:
    """Save a step and return its folder, ``root/step-N``; when this returns, it is on the disk.

    Args:
        root: Folder of the run's checkpoints; made if absent.
        step: Optimizer steps done.
        tensors: By name; weights of the model under ``model/``. Those that share memory are stored once.
        state: All else that going on needs; only what JSON can hold exactly (NaN, tuples and bytes included).
        metrics: Numbers of this step; ``eval_loss`` decides which checkpoint is the best.
        run_id: Of the run; no other run's checkpoint is replaced or pruned.
        layout: Of the run, as text.
        finite: False marks values known to hold NaN or Inf: kept, but never resumed from.
        max_retries: Further attempts after an error of the storage.
        backoff_s: Wait before the first of them; doubles each time.
        notice: Told about each failed attempt.
        hook: Called at each stage with the unfinished folder; what it raises counts as the storage's error.

    Raises:
        CheckpointError: The disk is full or can't be written, the storage failed to the last attempt, a tensor
            or a piece of state has no exact form, or the step is another run's.
    """
    root = Path(root)
    _check_tensors(tensors)
    encode_state(state)
    encode_state(dict(metrics), "metrics")
    target = root / f"step-{step}"
    _make_root(root)
    older = _manifests(root)
    _check_target(target, older, run_id)
    _check_space(root, tensors)
    manifest = _blank_manifest(step=step, state=state, metrics=metrics, run_id=run_id, layout=layout, finite=finite)
    manifest = replace(manifest, sequence=1 + max((each.sequence for each in older.values()), default=0))
    job = _Job(root=root, target=target, tensors=tensors, manifest=manifest, hook=hook)
    return _save_with_retries(job, max_retries=max_retries, backoff_s=backoff_s, notice=notice)


def _save_with_retries(job: _Job, *, max_retries: int, backoff_s: float, notice: Callable[[str], None]) -> Path:
    for attempt in range(max_retries + 1):
        try:
            _save_once(job, attempt)
            return job.target
        except OSError as error:
            if error.errno in _FULL:
                raise _no_space(job.root, needed_bytes=_needed_bytes(job.tensors)) from error
            if error.errno in _HOPELESS:
                raise CheckpointError("checkpoint.unwritable", path=job.root, reason=error.strerror) from error
            if attempt == max_retries:
                raise CheckpointError(
                    "checkpoint.save_failed", path=job.target, attempts=attempt + 1, reason=error
                ) from error
            wait_s = backoff_s * 2**attempt
            notice(
                say("checkpoint.save_retry", path=job.target, reason=error, left=max_retries - attempt, wait_s=wait_s)
            )
            time.sleep(wait_s)
    raise AssertionError("the last attempt returns or raises")


def _save_once(job: _Job, attempt: int) -> None:
    save_id = new_save_id()
    folder = job.root / f"{job.target.name}.inprogress-{save_id}"
    folder.mkdir()
    try:
        job.hook(SaveStage.BEFORE_SHARD, folder)
        shard = write_shard(folder / _SHARD_NAME, _entries(job.tensors), save_id=save_id)
        job.hook(SaveStage.BEFORE_MANIFEST, folder)
        manifest = replace(
            job.manifest,
            save_id=save_id,
            save_retries=attempt,
            shards={shard.record.file: shard.record},
            tensors=_records(job.tensors, shard),
        )
        text = format_manifest(manifest)
        _write_file(folder / COPY_NAME, text)
        _write_file(folder / MANIFEST_NAME, text)
        sync_folder(folder)
        job.hook(SaveStage.BEFORE_COMMIT, folder)
        commit_folder(folder, job.target, save_id)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _entries(tensors: Mapping[str, torch.Tensor]) -> list[ShardEntry]:
    firsts = first_names(tensors)
    return [
        ShardEntry(name=name, ranges=full_ranges(tuple(tensor.shape)), values=tensor)
        for name, tensor in tensors.items()
        if firsts[name] == name
    ]


def _records(tensors: Mapping[str, torch.Tensor], shard: WrittenShard) -> dict[str, TensorRecord]:
    records = {}
    for name, first in first_names(tensors).items():
        records[name] = TensorRecord(
            name=name,
            shape=tuple(tensors[name].shape),
            dtype=str(tensors[name].dtype).removeprefix("torch."),
            slices=(shard.slices[first],),
            same_as=first if first != name else None,
        )
    return records


def _blank_manifest(
    *, step: int, state: Mapping[str, Any], metrics: Mapping[str, float], run_id: str, layout: str, finite: bool
) -> Manifest:
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


def _write_file(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _manifests(root: Path) -> dict[Path, Manifest]:
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


def _unheard(text: str) -> None:
    """Drop a remark about an older checkpoint: it is made when that one is opened."""


def _check_target(target: Path, older: Mapping[Path, Manifest], run_id: str) -> None:
    if target in older and older[target].run_id != run_id:
        raise CheckpointError(
            "checkpoint.other_run", path=target, found=older[target].run_id or "-", wanted=run_id or "-"
        )


def _check_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    import torch

    for name, tensor in tensors.items():
        if not name or name == "__metadata__":
            raise CheckpointError("checkpoint.tensor_name", name=name)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise CheckpointError("checkpoint.tensor_kind", name=name, kind=type(tensor).__name__)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in STORED_TYPES:
            raise CheckpointError("checkpoint.tensor_dtype", name=name, dtype=dtype)
        if tensor.is_meta:
            raise CheckpointError("checkpoint.tensor_meta", name=name)


def _make_root(root: Path) -> None:
    try:
        if not root.is_dir():
            root.mkdir(parents=True, exist_ok=True)
            sync_folder(root.parent)
    except OSError as error:
        raise CheckpointError("checkpoint.unwritable", path=root, reason=error.strerror) from error


def _check_space(root: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    needed_bytes = _needed_bytes(tensors)
    if needed_bytes > shutil.disk_usage(root).free:
        raise _no_space(root, needed_bytes=needed_bytes)


def _needed_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(entry.size_bytes for entry in _entries(tensors)) + _BYTES_PER_NAME * (len(tensors) + 16)


def _no_space(root: Path, *, needed_bytes: int) -> CheckpointError:
    free_bytes = shutil.disk_usage(root).free
    # What was written is taken back by now, so the room left may look like enough: others write too, or blocks are big.
    key = "checkpoint.no_space" if needed_bytes > free_bytes else "checkpoint.space_ran_out"
    return CheckpointError(key, path=root, needed=format_bytes(needed_bytes), free=format_bytes(free_bytes))
