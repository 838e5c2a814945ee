"""One step of a torch optimizer with its gradients multiplied on the way."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def step_times(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Step with scaled gradients; a fused kernel multiplies as it reads them, by the attribute GradScaler uses."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if factor != 1.0 and grads and _scales_itself(optimizer):
        device = grads[0].device
        optimizer.grad_scale = torch.tensor(1.0 / factor, dtype=torch.float32, device=device)  # type: ignore[attr-defined]
        try:
            optimizer.step()
        finally:
            del optimizer.grad_scale  # type: ignore[attr-defined]
        return
    multiply(grads, factor)
    optimizer.step()


def _scales_itself(optimizer: torch.optim.Optimizer) -> bool:
    is_fused = all(group.get("fused") for group in optimizer.param_groups)
    return is_fused and bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def multiply(tensors: Sequence[Tensor], factor: float) -> None:
    if tensors and factor != 1.0:
        torch._foreach_mul_(list(tensors), factor)
