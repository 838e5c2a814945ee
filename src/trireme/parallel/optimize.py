"""A user's optimizer over a spread model: clips by the one true norm, steps on what this rank holds."""

from __future__ import annotations

import torch

from trireme.parallel.model import ParallelModel
from trireme.parallel.optimizer import LossScale, ParallelOptimizer


def parallel_optimizer(
    optimizer: torch.optim.Optimizer,
    model: ParallelModel,
    *,
    clip_grad_norm: float | None = None,
    scaler: LossScale | None = None,
) -> ParallelOptimizer:
    """Wrap an optimizer that was built on ``model.parameters()``.

    Args:
        optimizer: Any elementwise one; others are gathered for or refused by name.
        model: The spread model.
        clip_grad_norm: Largest global gradient norm; None: no clipping.
        scaler: Loss scale of fp16.

    Raises:
        LayoutError: The optimizer can't be exact under this layout, or holds parameters that aren't the model's.
    """
    return ParallelOptimizer(optimizer, parts=model.parts(), clip_grad_norm=clip_grad_norm, scaler=scaler)
