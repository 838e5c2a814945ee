"""Weights to begin with: a checkpoint's or a folder's, and nothing else of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from torch import nn

from trireme.checkpoint import newest_checkpoint, open_checkpoint, restore_tensors
from trireme.errors import ModelError
from trireme.models import load_folder_weights
from trireme.train import MODEL_PREFIX
from trireme.words import say


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
    if (path / "checkpoints").is_dir():
        checkpoint = newest_checkpoint(path / "checkpoints", notice=notice)
    else:
        checkpoint = open_checkpoint(path, notice=notice) if (path / "manifest.json").is_file() else None
    if checkpoint is None:
        raise ModelError("job.init_nothing", path=path)
    names = {f"{MODEL_PREFIX}{name}": tensor for name, tensor in module.state_dict(keep_vars=True).items()}
    restore_tensors(checkpoint, names, prefix=MODEL_PREFIX)
    notice(say("job.init_checkpoint", path=checkpoint.path, step=checkpoint.step))
