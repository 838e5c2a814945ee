"""What is asked of something that trains a module over ranks, so that its numbers can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from torch import Tensor

from trireme.plan import Layout
from trireme.verify.reference import Recipe
from trireme.verify.subject import Subject


class Candidate(Protocol):
    """A module in training on all ranks of a layout; every method is called by all of them together."""

    @property
    def path(self) -> str:
        """How the module was brought to run this way, in a few words."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What was told on the way."""
        ...

    def train_step(self, batch: Mapping[str, Any]) -> float:
        """Run forward and backward of this rank's part of a batch; return the mean loss of the global batch."""
        ...

    def gradients(self) -> Mapping[str, Tensor]:
        """Give every gradient whole, by the module's own names, on rank 0; before clipping."""
        ...

    def grad_norm(self) -> float:
        """Give the norm over all gradients of all ranks."""
        ...

    def step(self) -> None:
        """Clip, update the weights, and drop the gradients."""
        ...

    def parameters(self) -> Mapping[str, Tensor]:
        """Give every parameter whole, by the module's own names, on rank 0."""
        ...

    def local_parameters(self) -> Iterable[Tensor]:
        """Give what this rank holds."""
        ...


class CandidateFactory(Protocol):
    """Brings a subject onto the ranks of a layout."""

    def __call__(self, subject: Subject, layout: Layout, *, example: Mapping[str, Any], recipe: Recipe) -> Candidate:
        """Give the candidate; called by all ranks together."""
        ...
