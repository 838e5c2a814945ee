"""The loss on held-out sequences: each once, weighted by tokens, nothing left changed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trireme.data import Batch
from trireme.errors import TrainError
from trireme.train.engine import Engine, OneDevice, Passes
from trireme.train.microbatch import Work, fill_up, move, split_batch
from trireme.train.objective import Objective
from trireme.train.precision import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """One evaluation; ``loss`` is the mean over all supervised tokens, in nats."""

    loss: float
    num_seqs: int
    target_tokens: int
    eval_s: float


def evaluate(
    module: nn.Module,
    batches: Iterable[Batch | Mapping[str, Any]],
    *,
    objective: Objective,
    precision: Precision,
    microbatch_seqs: int | None = None,
    on_microbatch: Callable[[], None] = lambda: None,
    engine: Engine | None = None,
) -> EvalResult:
    """Return the loss over ``batches``, in micro-batches as in training, without gradients.

    With an ``engine`` of several ranks ``batches`` are this rank's parts, as many on every rank; a part may be empty.

    Raises:
        TrainError: There is nothing to predict in them.
    """
    started_s = time.perf_counter()
    engine = engine or OneDevice()
    sums: list[torch.Tensor] = []
    count = num_seqs = 0
    with evaluating(module), precision.compute_context(module, keeps_casts=engine.keeps_casts):
        for batch in batches:
            work = split_batch(batch, objective=objective, microbatch_seqs=microbatch_seqs, parts=engine.parts)
            work = fill_up(work, count=engine.num_passes(len(work.micros)))
            num_seqs, count = num_seqs + work.num_seqs, count + work.count
            passes = _passes(work, objective=objective, precision=precision, sums=sums, lockstep=engine.lockstep)
            engine.evaluate(module, passes)
            for _ in work.micros:
                on_microbatch()
    count, num_seqs = engine.sum_counts([count, num_seqs])
    if not count:
        raise TrainError("train.nothing_to_evaluate", seqs=num_seqs)
    (loss_sum,) = engine.sum_values([math.fsum(torch.stack(sums).tolist()) if sums else 0.0])
    return EvalResult(
        loss=loss_sum / count, num_seqs=num_seqs, target_tokens=count, eval_s=time.perf_counter() - started_s
    )


def _passes(
    work: Work, *, objective: Objective, precision: Precision, sums: list[torch.Tensor], lockstep: bool
) -> Passes:
    """Give the forwards of one batch; each adds its loss to ``sums``."""
    micros = [micro for micro in work.micros if micro.count or lockstep]

    def score(outputs: Any, tensors: Mapping[str, Any], index: int) -> torch.Tensor:
        loss_sum = objective.score(outputs, tensors, count=micros[index].count).loss_sum.float()
        sums.append(loss_sum if micros[index].count else torch.zeros_like(loss_sum))
        return loss_sum

    return Passes(
        count=len(micros),
        prepare=lambda index: move(micros[index].tensors, device=precision.device),
        call=objective.call,
        score=score,
    )


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every submodule gets its own mode back afterwards."""
    modes = {child: child.training for child in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for child, training in modes.items():
            child.training = training
