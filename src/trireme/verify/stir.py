"""Weights that hide mistakes, made to show them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STIR = 0.1
"""Spread of what is added: small beside a norm's ones, large beside what rounding does."""


@torch.no_grad()
def stir_constants(module: nn.Module, *, seed: int) -> tuple[str, ...]:
    """Add random numbers to every parameter whose elements are all equal, in place; return their names.

    A bias that is zero may be added twice, and a norm's ones may be cut anywhere, without a difference that can be
    seen. Numbers follow from the seed and the order of parameters, so every rank adds the same.
    """
    generator = torch.Generator().manual_seed(seed + 1)
    stirred = []
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if _is_constant(parameter):
            parameter.add_(noise.to(parameter), alpha=_STIR)
            stirred.append(name)
    return tuple(stirred)


def _is_constant(parameter: Tensor) -> bool:
    if parameter.numel() < 2 or not parameter.is_floating_point():
        return False
    first = parameter.flatten()[0]
    return bool((parameter == first).all())
