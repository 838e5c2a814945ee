"""Weights from a checkpoint to a Hugging Face folder, and from one to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trireme.errors import CheckpointError
from trireme.words import say


def convert_checkpoint(
    source: Path, target: Path, *, overwrite: bool = False, notice: Callable[[str], None] = lambda text: None
) -> str:
    """Write the weights in ``source`` in the other form, and say what was written.

    A run or a checkpoint becomes a Hugging Face folder, with the run's tokenizer; a Hugging Face folder becomes a
    checkpoint ``target/step-0`` that a run may begin with (``model.init_from``). Weights alone are converted, and the
    host must have room for them once.

    Raises:
        ModelError: There is no model in ``source``, it has no such form, or ``target`` is taken.
        CheckpointError: The checkpoint is damaged, or the new one can't be written.
    """
    if (source / "config.json").is_file() and not (source / "manifest.json").exists():
        return _from_hugging_face(source, target, overwrite=overwrite, notice=notice)
    return _to_hugging_face(source, target, overwrite=overwrite, notice=notice)


def _to_hugging_face(source: Path, target: Path, *, overwrite: bool, notice: Callable[[str], None]) -> str:
    import torch

    from trireme.job.loading import load_run
    from trireme.models import save_folder

    loaded = load_run(source, checkpoint="last", device=torch.device("cpu"), notice=notice)
    run = source if (source / "tokenizer").is_dir() else loaded.path.parent.parent
    tokenizer = run / "tokenizer"
    save_folder(
        loaded.model,
        path=target,
        tokenizer_folder=tokenizer if tokenizer.is_dir() else None,
        overwrite=overwrite,
    )
    return say("job.converted_to_folder", source=loaded.path, step=loaded.step, target=target)


def _from_hugging_face(source: Path, target: Path, *, overwrite: bool, notice: Callable[[str], None]) -> str:
    from trireme.checkpoint import MODEL_PREFIX, save_checkpoint
    from trireme.models import load_folder

    if (target / "step-0").exists() and not overwrite:
        raise CheckpointError("job.convert_taken", path=target / "step-0")
    module = load_folder(source, notice=notice).model
    tensors = {f"{MODEL_PREFIX}{name}": value for name, value in module.state_dict(keep_vars=True).items()}
    path = save_checkpoint(target, step=0, tensors=tensors, state={}, notice=notice)
    return say("job.converted_from_folder", source=source, target=path)
