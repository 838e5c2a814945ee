"""What differs between two checkpoints, whatever layouts saved them, and the repair of a lost manifest."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trireme.checkpoint.folder import step_folders, sync_folder
from trireme.checkpoint.manifest import COPY_NAME, MANIFEST_NAME, parse_manifest
from trireme.checkpoint.read import Checkpoint, open_checkpoint
from trireme.checkpoint.state_json import encode_state
from trireme.errors import CheckpointError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What two checkpoints don't have in common; false if that is nothing.

    Attributes:
        only_one: Tensors of the first alone.
        only_other: Tensors of the second alone.
        forms: Of tensors with another shape or dtype: both.
        values: Of tensors with other values: the largest difference.
        state: Parts of the other state that differ.
    """

    only_one: tuple[str, ...]
    only_other: tuple[str, ...]
    forms: dict[str, str]
    values: dict[str, float]
    state: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.only_one or self.only_other or self.forms or self.values or self.state)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        lists = {"only_one": list(self.only_one), "only_other": list(self.only_other), "state": list(self.state)}
        values = {name: value if value < float("inf") else "nan" for name, value in self.values.items()}
        return {**lists, "forms": self.forms, "values": values}


def compare_checkpoints(one: Checkpoint, other: Checkpoint) -> Difference:
    """Return what differs; two tensors are held at a time."""
    both = [name for name in one.names if name in other.names]
    forms = {
        name: f"{_form(one, name)} / {_form(other, name)}" for name in both if _form(one, name) != _form(other, name)
    }
    values = {}
    for name in both:
        if name not in forms and not _same_slices(one, other, name):
            largest = _largest(one.tensor(name), other.tensor(name))
            if largest > 0:
                values[name] = largest
    keys = dict.fromkeys([*one.state, *other.state])
    return Difference(
        only_one=tuple(name for name in one.names if name not in other.names),
        only_other=tuple(name for name in other.names if name not in one.names),
        forms=forms,
        values=values,
        state=tuple(key for key in keys if _state(one, key) != _state(other, key)),
    )


def is_checkpoint_root(path: Path) -> bool:
    """Tell whether a folder holds checkpoints."""
    return any(folder.is_checkpoint for folder in step_folders(path))


def repair_manifests(path: Path) -> str | None:
    """Write a damaged or lost manifest anew from the other one; returns which, None if both are whole.

    Raises:
        CheckpointError: Both are lost, or what the good one names is damaged too.
    """
    open_checkpoint(path, notice=lambda text: None)
    texts = {name: _good_text(path / name) for name in (MANIFEST_NAME, COPY_NAME)}
    lost = [name for name, text in texts.items() if text is None]
    if not lost:
        return None
    (text,) = (text for text in texts.values() if text is not None)
    unfinished = path / f"{lost[0]}.part"
    with open(unfinished, "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path / lost[0])
    sync_folder(path)
    return lost[0]


def _good_text(path: Path) -> bytes | None:
    try:
        text = path.read_bytes()
        parse_manifest(text, path=path)
    except (OSError, CheckpointError):
        return None
    return text


def _form(checkpoint: Checkpoint, name: str) -> str:
    record = checkpoint.manifest.tensors[name]
    return f"{record.dtype}{list(record.shape)}"


def _same_slices(one: Checkpoint, other: Checkpoint, name: str) -> bool:
    """Tell by the hashes alone that a tensor is the same, where both were cut alike."""
    mine, theirs = (
        {(piece.ranges, piece.xxh3) for piece in each.manifest.tensors[name].slices} for each in (one, other)
    )
    return mine == theirs


def _largest(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference; infinity where one has a NaN that the other has not."""
    import torch

    if torch.equal(one, other):
        return 0.0
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    wide, other_wide = one.to(torch.float64), other.to(torch.float64)
    gap = (wide - other_wide).abs()
    gap[wide == other_wide] = 0.0
    gap[wide.isnan() & other_wide.isnan()] = 0.0
    return float(gap.nan_to_num(nan=float("inf")).max()) if gap.numel() else 0.0


def _state(checkpoint: Checkpoint, key: str) -> Any:
    state = checkpoint.state
    return encode_state(state[key]) if key in state else None
