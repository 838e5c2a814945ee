"""A trained model, ready to write: from a run folder, one of its checkpoints, or a Hugging Face folder."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trireme.checkpoint import Checkpoint, CheckpointInfo, list_checkpoints, newest_checkpoint, open_checkpoint
from trireme.config import RunConfig, load_config
from trireme.data import Tokenizer, load_tokenizer
from trireme.errors import CheckpointError, ModelError
from trireme.job.chat_template import ChatTemplate, find_chat_template
from trireme.job.folder_file import read_folder_file
from trireme.observe import find_runs, read_state, suggest_runs

if TYPE_CHECKING:
    import torch
    from torch import nn

_MANIFEST = "manifest.json"
Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun:
    """A model with what it takes to talk to it.

    Attributes:
        path: The checkpoint or folder that the weights come from.
        model: On its device, in evaluation mode.
        tokenizer: The one it was trained with.
        config: The run's settings; None for a Hugging Face folder.
        step: Optimizer steps done; None for a Hugging Face folder.
        chat_template: How turns of a talk become tokens, if the tokenizer's folder says so.
        adds_bos: Whether a text begins with the begin token, as in training.
        stop_ids: Tokens that end a text.
        max_seq_len: Tokens the model can read; None if it does not say.
    """

    path: Path
    model: nn.Module
    tokenizer: Tokenizer
    config: RunConfig | None
    step: int | None
    chat_template: ChatTemplate | None
    adds_bos: bool
    stop_ids: tuple[int, ...]
    max_seq_len: int | None


def load_run(
    path: Path,
    *,
    checkpoint: str = "best",
    device: torch.device | None = None,
    notice: Notice = lambda text: None,
) -> LoadedRun:
    """Return the model in ``path``, on ``device`` (default: the one that training would take).

    Args:
        path: A run folder, a checkpoint in one, or a Hugging Face folder.
        checkpoint: ``best`` (lowest evaluation loss), ``last`` or ``step-N``; for a run folder.
        device: Where to put it.
        notice: Told what was passed over, and why.

    Raises:
        ModelError: There is no model in ``path``; the message names what is near.
        CheckpointError: There is no such checkpoint, or it is damaged.
    """
    if (path / _MANIFEST).is_file():
        return _load_checkpoint(open_checkpoint(path, notice=notice), run=path.parent.parent, device=device)
    if read_state(path) is not None:
        return _load_checkpoint(find_checkpoint(path, checkpoint, notice=notice), run=path, device=device)
    if (path / "config.json").is_file():
        return _load_hugging_face(path, device=device, notice=notice)
    raise _no_model(path)


def find_checkpoint(run: Path, which: str, *, notice: Notice = lambda text: None) -> Checkpoint:
    """Return a checkpoint of the run in ``run``, verified.

    Raises:
        CheckpointError: There is none yet, or none of that name; the message lists what there is.
    """
    root = run / "checkpoints"
    infos = list_checkpoints(root, notice=notice) if root.is_dir() else []
    if not infos:
        raise CheckpointError("generate.no_checkpoint", path=run)
    if which in ("best", "last"):
        best = _best(infos) if which == "best" else None
        found = open_checkpoint(best.path, notice=notice) if best else newest_checkpoint(root, notice=notice)
        if found is None:
            raise CheckpointError("generate.no_good_checkpoint", path=root)
        return found
    name = which if which.startswith("step-") else f"step-{which}"
    if not (root / name).is_dir():
        names = ", ".join(info.path.name for info in infos)
        raise CheckpointError("generate.no_such_checkpoint", name=which, path=run, names=names)
    return open_checkpoint(root / name, notice=notice)


def _best(infos: list[CheckpointInfo]) -> CheckpointInfo | None:
    """The good one with the lowest evaluation loss, the later of equals; None if none was evaluated."""
    judged = [(info.manifest.metrics.get("eval_loss", math.nan), info) for info in infos if info.manifest]
    finite = [(loss, info) for loss, info in judged if info.is_good and math.isfinite(loss)]
    return min(reversed(finite), key=lambda pair: pair[0])[1] if finite else None


def _load_checkpoint(checkpoint: Checkpoint, *, run: Path, device: torch.device | None) -> LoadedRun:
    from trireme.job.initial import restore_weights
    from trireme.models import build_model, context_length

    if not (run / "config.yaml").is_file():
        raise ModelError("generate.no_settings", path=checkpoint.path, run=run)
    config = load_config(run / "config.yaml", purpose="show").config
    tokenizer = load_tokenizer(run / "tokenizer")
    seq_len = config.data.seq_len
    model = build_model(config.model, vocab_size=tokenizer.vocab_size, seq_len=seq_len, seed=config.run.seed)
    restore_weights(model, checkpoint)
    return LoadedRun(
        path=checkpoint.path,
        model=_ready(model, device),
        tokenizer=tokenizer,
        config=config,
        step=checkpoint.step,
        chat_template=find_chat_template(run / "tokenizer"),
        adds_bos=begins_with_bos(tokenizer, config=config),
        stop_ids=_stop_ids(run / "tokenizer", tokenizer),
        max_seq_len=context_length(model) or seq_len,
    )


def _load_hugging_face(path: Path, *, device: torch.device | None, notice: Notice) -> LoadedRun:
    from trireme.models import context_length, load_folder

    tokenizer = load_tokenizer(path)
    model = load_folder(path, notice=notice).model
    return LoadedRun(
        path=path,
        model=_ready(model, device),
        tokenizer=tokenizer,
        config=None,
        step=None,
        chat_template=find_chat_template(path),
        adds_bos=_writes_bos(path, tokenizer),
        stop_ids=_stop_ids(path, tokenizer),
        max_seq_len=context_length(model),
    )


def begins_with_bos(tokenizer: Tokenizer, *, config: RunConfig) -> bool:
    """Say whether documents of this run begin with the begin token."""
    asked = config.data.add_bos
    return tokenizer.bos_id is not None and (asked is None or asked)


def _ready(model: nn.Module, device: torch.device | None) -> nn.Module:
    from trireme.mesh import choose_device

    return model.to(device or choose_device()).eval()


def _stop_ids(folder: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The end token, and whatever else the folder's generation settings name."""
    named = read_folder_file(folder / "generation_config.json").get("eos_token_id") or []
    ids = [*(named if isinstance(named, list) else [named]), tokenizer.eos_id]
    return tuple(dict.fromkeys(int(token_id) for token_id in ids if token_id is not None))


def _writes_bos(folder: Path, tokenizer: Tokenizer) -> bool:
    """Whether a text begins with the begin token: as the settings say, else as the file does.

    A file without a rule of its own (no post-processor) is read as in training: there is one, so it begins.
    """
    if tokenizer.bos_id is None:
        return False
    said = read_folder_file(folder / "tokenizer_config.json").get("add_bos_token")
    if said is not None:
        return bool(said)
    if read_folder_file(folder / "tokenizer.json").get("post_processor") is None:
        return True
    from tokenizers import Tokenizer as Engine

    return bool(Engine.from_file(str(folder / "tokenizer.json")).encode("a").ids[:1] == [tokenizer.bos_id])


def _no_model(path: Path) -> ModelError:
    runs = find_runs(path)
    if runs:
        return ModelError("generate.folder_of_runs", path=path, names=", ".join(str(run) for run in runs[:5]))
    near = ", ".join(str(run) for run in suggest_runs(path))
    if path.exists():
        return ModelError("generate.not_a_model_near" if near else "generate.not_a_model", path=path, near=near)
    return ModelError("generate.no_such_run_near" if near else "generate.no_such_run", path=path, near=near)
