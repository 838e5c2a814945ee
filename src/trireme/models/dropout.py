"""Dropout by counting: what is dropped depends on (seed, site, step, global element) alone.

So recomputation, another split of the batch over ranks and micro-batches, and a resumed run drop the
same elements.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trireme.models.counter import stream_key, uniform_bits


@dataclass(slots=True, kw_only=True)
class DropoutClock:
    """Where training stands; all dropout sites of one model share it, the trainer sets it."""

    seed: int = 0
    step: int = 0
    first_row: int = 0


class CountedDropout(nn.Module):
    """Zero elements with probability ``p`` and scale the rest, while training.

    Args:
        p: Probability of dropping.
        site: Name of the place in the model; sites draw independently.
        clock: Shared by the model's sites.
    """

    def __init__(self, p: float, *, site: str, clock: DropoutClock) -> None:
        super().__init__()
        self.p = p
        self.site = site
        self.clock = clock

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Drop; the first dim counts rows of the global batch from ``clock.first_row`` on."""
        if not self.training or self.p == 0.0:
            return x_BTD
        key = stream_key(self.clock.seed, self.site, self.clock.step)
        first = self.clock.first_row * x_BTD[0].numel()
        index = torch.arange(first, first + x_BTD.numel(), device=x_BTD.device)
        kept = uniform_bits(index, key).ge_(round(self.p * 2**24)).view(x_BTD.shape)
        return (x_BTD * kept).div(1.0 - self.p)


def set_dropout_clock(module: nn.Module, *, step: int, first_row: int = 0) -> None:
    """Tell every counted dropout of ``module`` which step this is and which row of the global batch comes first.

    A module without any is left alone.
    """
    for site in module.modules():
        if isinstance(site, CountedDropout):
            site.clock.step = step
            site.clock.first_row = first_row
