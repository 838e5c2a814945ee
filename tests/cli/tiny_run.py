"""A finished run, small enough to make in a moment: real tokenizer, real checkpoints, weights that were never trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from trireme.checkpoint import save_checkpoint
from trireme.config import load_config
from trireme.data import train_tokenizer
from trireme.models import build_model
from trireme.observe import RunFolder

TEXT = "明月几时有，把酒问青天。\n不知天上宫阙，今夕是何年。\n" * 40
OVERRIDES = (
    "model.name=llama-1m",
    "model.num_layers=2",
    "model.d_model=32",
    "model.num_heads=4",
    "model.num_kv_heads=2",
    "model.d_ffn=64",
    "data.seq_len=96",
)


def make_run(path: Path, *, evals: Mapping[int, float] | None = None, dtype: torch.dtype = torch.float32) -> Path:
    """Make a run folder with a checkpoint for each of ``evals`` (step -> evaluation loss); each has other weights."""
    loaded = load_config(None, OVERRIDES, purpose="show")
    tokenizer = train_tokenizer([TEXT], vocab_size=300)
    with RunFolder.open_fresh(path) as folder:
        folder.write_text("config.yaml", loaded.to_yaml())
        tokenizer.save(folder.tokenizer_dir)
        steps = {20: 2.0} if evals is None else evals
        for step, loss in steps.items():
            model = build_model(loaded.config.model, vocab_size=tokenizer.vocab_size, seq_len=96, seed=step).to(dtype)
            tensors = {f"model/{name}": value for name, value in model.named_parameters()}
            extra = {"optimizer/embed_tokens.weight.exp_avg": torch.zeros(3)}
            save_checkpoint(
                folder.checkpoint_dir,
                step=step,
                tensors={**tensors, **extra},
                state={"progress": step},
                metrics={"eval_loss": loss},
            )
        folder.mark(status="finished", step=max(steps, default=0), max_steps=20)
    return path
