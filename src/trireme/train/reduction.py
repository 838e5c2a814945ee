"""The one seam through which data-parallel ranks enter a step.

A step calls it three times: for the counts, before the first backward; for the gradients, after the
last; and for what is reported. Everything a step decides (skip, clip, stop) follows from these
reduced numbers, so ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from trireme.train.optim import grad_norm


class Reduction(Protocol):
    """What a step needs from the ranks that share its global batch."""

    lockstep: bool
    """Whether every rank must run the same number of forwards and backwards."""

    def first_row(self, num_seqs: int) -> int:
        """Return which row of the global batch this rank's ``num_seqs`` begin at; dropout counts by it."""
        ...

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts summed over data-parallel ranks; called before the first backward."""
        ...

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Return reported sums (loss) over data-parallel ranks."""
        ...

    def reduce_gradients(self, module: nn.Module) -> None:
        """Sum the gradients over data-parallel ranks; called once, after the last backward."""
        ...

    def grad_norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm over all gradients of all ranks, each element once."""
        ...


class OneRank:
    """One device: nothing to reduce."""

    lockstep = False

    def first_row(self, num_seqs: int) -> int:
        """Return zero: its rows are the global batch."""
        return 0

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts as they are."""
        return list(counts)

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Return the values as they are."""
        return list(values)

    def reduce_gradients(self, module: nn.Module) -> None:
        """Leave the gradients as they are."""

    def grad_norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm over this device's gradients."""
        return grad_norm(parameters)
