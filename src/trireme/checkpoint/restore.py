"""Putting a checkpoint back, strictly: everything in it is claimed, everything asked for is in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from trireme.checkpoint.read import Checkpoint
from trireme.checkpoint.tie import first_names
from trireme.errors import CheckpointError
from trireme.words import say

if TYPE_CHECKING:
    import torch

MODEL_PREFIX = "model/"
"""What the names of a model's weights begin with; no other tensor's name does."""

OPTIMIZER_PREFIX = "optimizer/"
"""What the names of optimizer state begin with: ``optimizer/<parameter>/<key>``."""

_MAX_NAMES = 6
"""Names that one message lists of a kind; the rest are counted."""


def restore_tensors(checkpoint: Checkpoint, targets: Mapping[str, torch.Tensor], *, prefix: str = "") -> None:
    """Copy a checkpoint's tensors into ``targets``, in place, on whatever device they are.

    All is compared before anything is copied. Names that are tied in the checkpoint must be tied in the
    targets and the other way round; one name of a tied group is enough to claim it.

    Args:
        checkpoint: Where from.
        targets: By name, as they were saved.
        prefix: Take only the names that start so, ``"model/"`` for weights alone.

    Raises:
        CheckpointError: Something is missing, unexpected, of another shape or dtype, or tied otherwise; one
            message lists it all.
    """
    import torch

    _check_match(checkpoint, targets, prefix)
    firsts = first_names(targets)
    with torch.no_grad():
        for name, target in targets.items():
            if firsts[name] == name:
                checkpoint.read_into(name, target)


def weights_only(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the model's weights, without optimizer and the like."""
    return tuple(name for name in checkpoint.names if name.startswith(MODEL_PREFIX))


def check_resumable(checkpoint: Checkpoint) -> None:
    """Raise if a checkpoint holds weights but nothing to go on with.

    Raises:
        CheckpointError: It can only initialise a model; the message says so.
    """
    if len(weights_only(checkpoint)) == len(checkpoint.names) or not checkpoint.state:
        raise CheckpointError("checkpoint.weights_only", path=checkpoint.path)
    if not checkpoint.manifest.finite:
        raise CheckpointError("checkpoint.not_finite", path=checkpoint.path)


def find_nonfinite(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the tensors that hold a NaN or an infinity, reading one at a time."""
    return tuple(
        name
        for name, first in checkpoint.first_names().items()
        if name == first and not _is_finite(checkpoint.tensor(name))
    )


def _is_finite(values: torch.Tensor) -> bool:
    import torch

    if values.is_complex():
        return _is_finite(torch.view_as_real(values))
    if not values.is_floating_point() or values.dtype == torch.float4_e2m1fn_x2:
        return True  # integers, and a format that has neither NaN nor infinity
    wide = values.float() if values.itemsize == 1 else values
    return bool(torch.isfinite(wide).all().item())


def _check_match(checkpoint: Checkpoint, targets: Mapping[str, torch.Tensor], prefix: str) -> None:
    names = [name for name in checkpoint.names if name.startswith(prefix)]
    both = [name for name in targets if name in checkpoint.manifest.tensors and name.startswith(prefix)]
    firsts = checkpoint.first_names()
    claimed = {firsts[name] for name in both}
    problems = (
        ("checkpoint.missing", [name for name in targets if name not in both]),
        ("checkpoint.unexpected", [name for name in names if firsts[name] not in claimed]),
        (
            "checkpoint.other_shape",
            [_shapes(checkpoint, name, targets[name]) for name in _misshaped(checkpoint, both, targets)],
        ),
        (
            "checkpoint.other_dtype",
            [_dtypes(checkpoint, name, targets[name]) for name in _mistyped(checkpoint, both, targets)],
        ),
        ("checkpoint.other_ties", _tied_otherwise(firsts, {name: targets[name] for name in both})),
    )
    told = [say(key, names=_listed(found)) for key, found in problems if found]
    if told:
        raise CheckpointError("checkpoint.mismatch", path=checkpoint.path, problems="; ".join(told))


def _misshaped(checkpoint: Checkpoint, names: Iterable[str], targets: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in names if checkpoint.shape(name) != tuple(targets[name].shape)]


def _mistyped(checkpoint: Checkpoint, names: Iterable[str], targets: Mapping[str, torch.Tensor]) -> list[str]:
    return [name for name in names if checkpoint.dtype(name) != targets[name].dtype]


def _shapes(checkpoint: Checkpoint, name: str, target: torch.Tensor) -> str:
    return f"{name} {list(checkpoint.shape(name))} -> {list(target.shape)}"


def _dtypes(checkpoint: Checkpoint, name: str, target: torch.Tensor) -> str:
    found, wanted = (str(dtype).removeprefix("torch.") for dtype in (checkpoint.dtype(name), target.dtype))
    return f"{name} {found} -> {wanted}"


def _tied_otherwise(firsts: Mapping[str, str], targets: Mapping[str, torch.Tensor]) -> list[str]:
    """Return pairs that are one tensor on one side and two on the other."""
    here = first_names(targets)
    saved: dict[str, str] = {}
    wrong = []
    for name in targets:
        there = saved.setdefault(firsts[name], name)
        if there != here[name]:
            wrong.append(f"{name} = {here[name] if there == name else there}")
    return wrong


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES])
    return shown if len(names) <= _MAX_NAMES else say("checkpoint.and_more", names=shown, count=len(names) - _MAX_NAMES)
