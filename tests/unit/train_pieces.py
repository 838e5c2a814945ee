"""Small modules and batches for the tests of the train room."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from trireme.config import TrainSection
from trireme.data import Batch
from trireme.train import Cadence, Pieces, Precision, Stepper, StepPlan, build_optimizer, build_schedule

VOCAB = 19
SEQ_LEN = 12
CPU = torch.device("cpu")


class Block(nn.Module):
    """Norm, mixing along the sequence, dropout."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
        past_BTD = x_BTD.cumsum(1) / torch.arange(1, x_BTD.shape[1] + 1, dtype=x_BTD.dtype).view(1, -1, 1)
        return x_BTD + self.dropout(self.down(F.silu(self.up(self.norm(past_BTD)))))


class TinyLM(nn.Module):
    """A language model of a few thousand weights with norms, biases and a tied head."""

    def __init__(self, *, seed: int = 0, width: int = 16, dropout: float = 0.0, tied: bool = True) -> None:
        torch.manual_seed(seed)
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCAB, bias=False)
        if tied:
            self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x_BTD = self.embed(input_ids)
        for block in self.blocks:
            x_BTD = block(x_BTD)
        return self.head(self.norm(x_BTD))


def call(module: nn.Module, batch: Mapping[str, Any]) -> torch.Tensor:
    return module(batch["input_ids"])


def loss_fn(outputs: torch.Tensor, batch: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    labels = batch["labels"].reshape(-1)
    logits = outputs.reshape(-1, VOCAB).to(torch.promote_types(outputs.dtype, torch.float32))
    loss = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()


def make_batch(step: int, *, rows: int = 8, seed: int = 7, answers: tuple[int, ...] = ()) -> Batch:
    """Rows of a repeating pattern with noise; ``answers``: how many last tokens of each row are learned."""
    rng = np.random.default_rng((seed, step))
    start = rng.integers(0, VOCAB, size=(rows, 1))
    tokens = (start + np.arange(SEQ_LEN + 1) * rng.integers(1, 3, size=(rows, 1))) % VOCAB
    labels = tokens[:, 1:].copy()
    for row, learned in enumerate(answers):
        labels[row, : SEQ_LEN - learned] = -100
    return Batch(
        step=step,
        sample_ids=np.arange(step * rows, (step + 1) * rows),
        input_ids=tokens[:, :-1].astype(np.int32),
        labels=labels.astype(np.int32),
        position_ids=np.tile(np.arange(SEQ_LEN, dtype=np.int32), (rows, 1)),
        document_ids=np.zeros((rows, SEQ_LEN), dtype=np.int32),
        num_real_tokens=rows * SEQ_LEN,
        num_target_tokens=int((labels != -100).sum()),
    )


def section(**keys: Any) -> TrainSection:
    defaults: dict[str, Any] = {"max_steps": 6, "global_batch_seqs": 8, "lr": 1e-2, "warmup_steps": 2}
    return TrainSection(**{**defaults, **keys})


def make_stepper(module: nn.Module | None = None, *, settings: TrainSection | None = None, **keys: Any) -> Stepper:
    module = module if module is not None else TinyLM()
    settings = settings or section()
    precision = keys.pop("precision", "fp32")
    if isinstance(precision, str):
        precision = Precision(policy=precision, device=CPU)  # type: ignore[arg-type]
    optimizer = keys.pop("optimizer", None) or build_optimizer(module, settings)
    return Stepper(
        module,
        optimizer,
        **{"loss_fn": loss_fn, "call": call, "clip_grad_norm": 1.0, **keys},
        precision=precision,
    )


def open_batches(first: int, last: int) -> AbstractContextManager[list[Batch]]:
    return nullcontext([make_batch(step) for step in range(first, last)])


def make_pieces(stepper: Stepper, *, settings: TrainSection | None = None, seed: int = 5, **keys: Any) -> Pieces:
    settings = settings or section()
    rows = settings.global_batch_seqs
    assert settings.max_steps is not None
    plan = StepPlan(max_steps=settings.max_steps, global_batch_seqs=rows, step_tokens=rows * SEQ_LEN)
    keys.setdefault("plan", plan)
    keys.setdefault("schedule", build_schedule(settings, plan=keys["plan"]))
    keys.setdefault("cadence", Cadence(eval_every_steps=None, sample_every_steps=None, save_every_steps=None))
    keys.setdefault(
        "open_loader", lambda first, last: nullcontext([make_batch(s, rows=rows) for s in range(first, last)])
    )
    keys.setdefault("samples_per_epoch", 4 * rows)
    return Pieces(stepper=stepper, seed=seed, **keys)
