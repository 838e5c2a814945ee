"""Initial weights: counter-based on (seed, parameter name, element), so any shard can be made alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from trireme.interpret import fill_normal, stream_key

STD = 0.02
"""Standard deviation of every matrix.

Source:
    Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", section 2.3 and code; the
    projections back into the residual stream are divided by sqrt(2 * layers) as there.
"""

_INTO_RESIDUAL = ("o_proj.weight", "down_proj.weight")


def initial_std(name: str, *, num_layers: int) -> float:
    """Give the standard deviation of the decoder's matrix called ``name``."""
    return STD / math.sqrt(2 * num_layers) if name.endswith(_INTO_RESIDUAL) else STD


@torch.no_grad()
def initialise_parameter(
    target: Tensor,
    *,
    name: str,
    seed: int,
    num_layers: int,
    full_shape: Sequence[int] | None = None,
    start: Sequence[int] | None = None,
) -> None:
    """Fill a decoder's parameter, or a slice of it, with its initial numbers, in place.

    Args:
        target: The parameter, or the slice of it that begins at ``start`` of ``full_shape``.
        name: The parameter's name in the whole model.
        seed: The run's seed.
        num_layers: Layers of the whole model.
        full_shape: Shape of the whole parameter. Default: ``target`` is the whole.
        start: Where the slice begins, per dim.
    """
    if len(full_shape or target.shape) == 1:
        target.fill_(1.0)
        return
    key = stream_key(seed, "init", name)
    fill_normal(target, key=key, std=initial_std(name, num_layers=num_layers), full_shape=full_shape, start=start)


def initialise(module: nn.Module, *, seed: int, num_layers: int) -> None:
    """Fill every parameter of a decoder with its initial numbers, in place."""
    for name, parameter in module.named_parameters():
        initialise_parameter(parameter.data, name=name, seed=seed, num_layers=num_layers)
