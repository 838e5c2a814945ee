"""Dropout by counting: what is dropped depends on (seed, site, step, global element) alone.

So recomputation, another split of the batch over ranks and micro-batches, and a resumed run drop the
same elements.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.interpret import drawing_at, dropout_key, is_counting, keep, signed, stream_key


class DropoutClock:
    """Where training stands; all dropout sites of one model share it, the trainer sets it.

    The three numbers are a tensor on the CPU: a compiler would build any other number into its code.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self.numbers = torch.tensor([seed, 0, 0], dtype=torch.int64, device="cpu")

    def set(self, *, step: int, first_row: int) -> None:
        """Tell the step and which row of the global batch comes first."""
        self.numbers[1], self.numbers[2] = step, first_row


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
        self.clock = clock
        # A tensor as well, or every layer would be compiled by itself; no buffer, for it never changes.
        self.site_key = torch.tensor(signed(stream_key(site)), dtype=torch.int64, device="cpu")

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Drop; the first dim counts rows of the global batch from ``clock.first_row`` on."""
        if not self.training or self.p == 0.0:
            return x_BTD
        if is_counting():  # whoever runs this forward knows better where its rows, heads and positions lie
            with drawing_at(int(self.site_key)):
                return F.dropout(x_BTD, self.p, True)
        draw = _kept_in_graph if torch.compiler.is_compiling() else _kept
        return (x_BTD * draw(x_BTD, self.clock.numbers, self.site_key, self.p)).div(1.0 - self.p)


def _kept(x_BTD: Tensor, clock: Tensor, site_key: Tensor, p: float) -> Tensor:
    """Say of each element whether it is kept."""
    seed, step, first_row = clock.tolist()
    first = first_row * x_BTD[0].numel()
    index = torch.arange(first, first + x_BTD.numel(), device=x_BTD.device)
    return keep(index, key=dropout_key(seed, site_key.item(), step), p=p).view(x_BTD.shape)


# A compiler takes the draw as one piece: its code generators have no unsigned 64-bit constants, and a key
# worked out while compiling would compile every step anew.
_kept_in_graph = torch.library.custom_op("trireme::kept", _kept, mutates_args=())


@_kept_in_graph.register_fake
def _kept_shape(x_BTD: Tensor, clock: Tensor, site_key: Tensor, p: float) -> Tensor:
    return torch.empty_like(x_BTD, dtype=torch.bool)


def set_dropout_clock(module: nn.Module, *, step: int, first_row: int = 0) -> None:
    """Tell every counted dropout of ``module`` which step this is and which row of the global batch comes first.

    A module without any is left alone.
    """
    for site in module.modules():
        if isinstance(site, CountedDropout):
            site.clock.set(step=step, first_row=first_row)
