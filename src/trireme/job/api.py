"""The short way in from Python: one call trains, one call loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from trireme.config import Loaded, Purpose, load_config
from trireme.job.options import RunOptions, run_dir_of

if TYPE_CHECKING:
    from torch import nn

    from trireme.job.loading import LoadedRun
    from trireme.observe import Observer
    from trireme.train import Callback, FitResult


def run(
    settings: str | Path | Mapping[str, Any],
    *overrides: str,
    resume: bool = False,
    overwrite: bool = False,
    extend: Literal["stretch", "hold"] | None = None,
    accept: Sequence[str] = (),
    module: nn.Module | None = None,
    loss_fn: Callable[..., Any] | None = None,
    callbacks: Sequence[Callback] = (),
    observers: Sequence[Observer] = (),
) -> FitResult:
    """Train as a YAML file or a mapping of the same keys says; what ``trireme train`` does, and no other code.

    For example::

        import trireme

        result = trireme.run("recipes/lyrics.yaml", "train.max_steps=200", overwrite=True)
        print(result.status, result.step, result.best_loss)

    Args:
        settings: A file, or a mapping such as ``{"model": {"name": "llama-3m"}, ...}``.
        overrides: ``key=value``, on top of the settings.
        resume: Go on with the run in its folder.
        overwrite: Delete the run in its folder first.
        extend: What happens to the learning rate if a resumed run's length changed.
        accept: Keys whose new value is wanted although the run was made with another.
        module: What is trained, instead of ``model``; any ``torch.nn.Module``, as it is.
        loss_fn: ``(outputs, batch) -> (loss_sum, count)``; default: next-token cross-entropy.
        callbacks: Told about moments of the run.
        observers: Told about its numbers.

    Raises:
        TriremeError: Whatever a person can mend.
    """
    options = RunOptions(resume=resume, overwrite=overwrite, extend=extend, accept=frozenset(accept))
    from trireme.job.train import run_training
    from trireme.train import build_objective

    purpose: Purpose = "train" if module is None else "module"
    if isinstance(settings, Mapping):
        loaded = load_config(None, overrides, base=settings, purpose=purpose)
    else:
        loaded = load_config(settings, overrides, purpose=purpose)
    return run_training(
        loaded,
        options=options if module is not None else replace(options, command=_command(loaded, overrides)),
        module=module,
        objective=None if loss_fn is None else build_objective(loss_fn=loss_fn),
        callbacks=callbacks,
        observers=observers,
    )


def _command(loaded: Loaded, overrides: Sequence[str]) -> tuple[str, ...]:
    """What one would type for the same run; settings that lie in no file are those of the run folder."""
    if loaded.path is not None:
        return ("trireme", "train", str(loaded.path), *overrides)
    return ("trireme", "train", str(run_dir_of(asked=loaded.config.run.dir, recipe=None)))


def load(folder: str | Path, *, checkpoint: str = "best") -> LoadedRun:
    """Return the model in a run folder, a checkpoint or a Hugging Face folder, with its tokenizer.

    For example::

        import trireme

        loaded = trireme.load("runs/lyrics")
        logits = loaded.model(torch.tensor([loaded.tokenizer.encode("明月")]))

    Raises:
        ModelError: There is no model there; the message names what is near.
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    from trireme.job.loading import load_run

    return load_run(Path(folder), checkpoint=checkpoint)
