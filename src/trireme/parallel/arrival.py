"""Tensors that came from another stage, and the gradients that have to go back there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A received tensor and what backward leaves its gradient on.

    Attributes:
        tensor: For the stage; it may be written to in place, as the output of a layer may.
        anchor: A leaf without memory that gets the gradient; None where none is wanted.
    """

    tensor: Tensor
    anchor: Tensor | None

    def take_gradient(self) -> Tensor | None:
        """Give the gradient and forget it."""
        if self.anchor is None:
            return None
        gradient, self.anchor.grad = self.anchor.grad, None
        return gradient


def arrive(tensor: Tensor, *, differentiates: bool) -> Arrival:
    """Let backward reach a received tensor."""
    if not (differentiates and torch.is_grad_enabled()):
        return Arrival(tensor=tensor, anchor=None)
    anchor = torch.zeros((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape).requires_grad_()
    notes = dict(vars(tensor))
    arrived: Tensor = _Arrive.apply(anchor, [tensor])  # type: ignore[no-untyped-call]
    vars(arrived).update(notes)
    return Arrival(tensor=arrived, anchor=anchor)


class _Arrive(torch.autograd.Function):
    """The tensor travels in a list, lest it count as a view of a leaf, which can't be written to."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, box: list[Tensor]) -> Tensor:
        return box.pop()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
