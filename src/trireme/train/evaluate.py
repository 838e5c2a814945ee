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
from trireme.train.microbatch import move, split_batch
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
) -> EvalResult:
    """Return the loss over ``batches``, in micro-batches as in training, without gradients.

    Raises:
        TrainError: There is nothing to predict in them.
    """
    started_s = time.perf_counter()
    sums: list[torch.Tensor] = []
    count = num_seqs = 0
    with evaluating(module), precision.compute_context(module):
        for batch in batches:
            work = split_batch(batch, objective=objective, microbatch_seqs=microbatch_seqs)
            num_seqs, count = num_seqs + work.num_seqs, count + work.count
            for micro in work.micros:
                if micro.count:
                    tensors = move(micro.tensors, device=precision.device)
                    sums.append(objective.evaluate(module, tensors, count=micro.count).loss_sum.float())
                on_microbatch()
    if not count:
        raise TrainError("train.nothing_to_evaluate", seqs=num_seqs)
    loss_sum = math.fsum(torch.stack(sums).tolist())
    return EvalResult(
        loss=loss_sum / count, num_seqs=num_seqs, target_tokens=count, eval_s=time.perf_counter() - started_s
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
