"""Weights of a checkpoint or a folder for a module that is there, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from trireme.checkpoint import MODEL_PREFIX, Checkpoint, newest_checkpoint, open_checkpoint, restore_tensors
from trireme.errors import ModelError
from trireme.models import load_folder_weights
from trireme.words import say


def check_init_from(init_from: str | None, *, run_dir: Path) -> None:
    """Refuse to begin with weights that lie in the run that the new one would replace.

    Raises:
        ModelError: They do.
    """
    if init_from is not None and run_dir.resolve() in (Path(init_from).resolve(), *Path(init_from).resolve().parents):
        raise ModelError("job.init_overwritten", path=init_from, run_dir=run_dir)


def init_weights(module: nn.Module, path: Path, *, notice: Callable[[str], None]) -> None:
    """Copy weights into ``module`` from a run, a checkpoint or a Hugging Face folder; training starts at step 0.

    Raises:
        ModelError: There is no such folder, or it holds none of these.
        CheckpointError: The checkpoint is damaged or of another model.
    """
    if not path.is_dir():
        raise ModelError("job.init_missing", path=path)
    if (path / "config.json").is_file():
        load_folder_weights(module, path)
        notice(say("job.init_folder", path=path))
        return
    checkpoint = _find(path, notice=notice)
    if checkpoint is None:
        raise ModelError("job.init_nothing", path=path)
    restore_weights(module, checkpoint)
    notice(say("job.init_checkpoint", path=checkpoint.path, step=checkpoint.step))


def restore_weights(module: nn.Module, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's weights into ``module``, strictly, rounding to the module's formats.

    Raises:
        CheckpointError: A weight is missing, unexpected or of another shape.
    """
    named = {f"{MODEL_PREFIX}{name}": value for name, value in module.state_dict(keep_vars=True).items()}
    # A tied weight is saved once; its other names are the same tensor and need no claim of their own.
    firsts = {id(value): name for name, value in reversed(named.items())}
    targets = {name: value for name, value in named.items() if firsts[id(value)] == name}
    formats = {name: value.dtype for name, value in targets.items()}
    for name in targets.keys() & set(checkpoint.names):
        targets[name].data = targets[name].data.to(checkpoint.dtype(name))
    restore_tensors(checkpoint, targets, prefix=MODEL_PREFIX)
    for name, value in targets.items():
        value.data = value.data.to(formats[name])


def _find(path: Path, *, notice: Callable[[str], None]) -> Checkpoint | None:
    if (path / "checkpoints").is_dir():
        return newest_checkpoint(path / "checkpoints", notice=notice)
    return open_checkpoint(path, notice=notice) if (path / "manifest.json").is_file() else None
