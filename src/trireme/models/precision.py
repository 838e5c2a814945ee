"""Where numbers are rounded: one context for mixed precision, one rule for what stays exact.

Master weights, the residual stream, normalisation statistics, rotary tables and rotation, and the
statistics of the loss are fp32; matrix products take bf16 or fp16. Autocast does the casting, so any
``nn.Module`` follows the same rule, and it keeps a weight's cast for as long as the context is open.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def mixed_precision(module: nn.Module, dtype: torch.dtype | None, *, keeps_casts: bool = True) -> Iterator[None]:
    """Run what is inside with matrix products in ``dtype``; ``None`` and fp32 change nothing.

    Open it once around all micro-batches of a step, forward and backward: each weight is then cast once a
    step. Close it before the weights change, and open another one for evaluation: a cast that was made
    without gradients must not meet training.
    """
    if dtype is None or dtype == torch.float32:
        yield
        return
    with torch.autocast(module_device(module).type, dtype=dtype, cache_enabled=keeps_casts):
        yield


def module_device(module: nn.Module) -> torch.device:
    """Return where a module's first parameter lives; a module without parameters lives on the default device."""
    parameter = next(module.parameters(), None)
    return torch.get_default_device() if parameter is None else parameter.device


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the format matrix products take here: autocast's if it is on, else that of ``x``."""
    device_type = x.device.type
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.get_autocast_dtype(device_type)
    return x.dtype


def statistics_dtype(x: Tensor) -> torch.dtype:
    """Return the format sums and roots over ``x`` take: at least fp32."""
    return torch.promote_types(x.dtype, torch.float32)


def prefers_host_kernel(x: Tensor) -> bool:
    """Say whether the hand-written backward passes pay off here: on a CPU, run eagerly.

    Elsewhere the library's fused kernels, or a compiler that fuses the plain formula, do better.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def without_autocast(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``forward`` or ``backward`` of an autograd function so that it rounds where it says, and only there."""

    @functools.wraps(method)
    def exact(ctx: Any, x: Tensor, *rest: Any) -> Any:
        with torch.autocast(x.device.type, enabled=False):
            return method(ctx, x, *rest)

    return exact
