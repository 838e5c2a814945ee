"""Saving: all of a step or nothing of it.

Everything is written into a folder of its own, made durable, and only then given its name. Files of
an older checkpoint are never touched, so a kill at any moment costs at most the save in progress.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from trireme.checkpoint.commit import (
    blank_manifest,
    check_space,
    commit_save,
    fill_manifest,
    make_root,
    needed_bytes,
    next_in_line,
    no_space,
    older_manifests,
    write_manifests,
)
from trireme.checkpoint.deal import TensorNote
from trireme.checkpoint.errno_kind import FULL_ERRORS, HOPELESS_ERRORS
from trireme.checkpoint.folder import new_save_id
from trireme.checkpoint.piece import check_tensors
from trireme.checkpoint.record import Manifest
from trireme.checkpoint.shard import ShardEntry, tensor_entry, write_shard
from trireme.checkpoint.state_json import encode_state
from trireme.checkpoint.tie import first_names
from trireme.errors import CheckpointError
from trireme.words import say

if TYPE_CHECKING:
    import torch

_SHARD_NAME = "shard-00000.safetensors"


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
    check_tensors(tensors)
    encode_state(state)
    encode_state(dict(metrics), "metrics")
    target = root / f"step-{step}"
    make_root(root)
    blank = blank_manifest(step=step, state=state, metrics=metrics, run_id=run_id, layout=layout, finite=finite)
    manifest = next_in_line(blank, target=target, older=older_manifests(root))
    check_space(root, _needed_bytes(tensors))
    job = _Job(root=root, target=target, tensors=tensors, manifest=manifest, hook=hook)
    return _save_with_retries(job, max_retries=max_retries, backoff_s=backoff_s, notice=notice)


def _save_with_retries(job: _Job, *, max_retries: int, backoff_s: float, notice: Callable[[str], None]) -> Path:
    for attempt in range(max_retries + 1):
        try:
            _save_once(job, attempt)
            return job.target
        except OSError as error:
            if error.errno in FULL_ERRORS:
                raise no_space(job.root, needed=_needed_bytes(job.tensors)) from error
            if error.errno in HOPELESS_ERRORS:
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
        notes = _notes(job.tensors)
        manifest = fill_manifest(job.manifest, save_id=save_id, retries=attempt, tensors=notes, shards=[shard])
        write_manifests(folder, manifest)
        job.hook(SaveStage.BEFORE_COMMIT, folder)
        commit_save(folder, job.target, manifest)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _entries(tensors: Mapping[str, torch.Tensor]) -> list[ShardEntry]:
    firsts = first_names(tensors)
    return [tensor_entry(name, tensor) for name, tensor in tensors.items() if firsts[name] == name]


def _notes(tensors: Mapping[str, torch.Tensor]) -> list[TensorNote]:
    return [
        TensorNote(
            name=name,
            shape=tuple(tensors[name].shape),
            dtype=str(tensors[name].dtype).removeprefix("torch."),
            same_as=first if first != name else None,
        )
        for name, first in first_names(tensors).items()
    ]


def _needed_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    value_bytes = sum(entry.size_bytes for entry in _entries(tensors))
    return needed_bytes(value_bytes=value_bytes, num_tensors=len(tensors))
