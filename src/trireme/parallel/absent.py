"""Absent tensors: they have shape, dtype and device, but no numbers and no memory.

What another stage computes is absent here. User code runs on absent tensors as on any others, since sizes are all
that ordinary code asks for; code that asks for values is told that it can't be cut there.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trireme.parallel.tracing_private import FakeTensorMode, bare_function_calls, exchange
from trireme.parallel.value import ValueId, is_absent, number, seen_shape


class Absence:
    """Makes absent tensors that may meet each other, and present ones."""

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)

    def make(
        self, shape: Sequence[int], stride: Sequence[int] | None, *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Give an absent tensor."""
        with self.mode, torch.no_grad(), bare_function_calls():  # whoever counts calls need not see this one
            if stride is None:
                return torch.empty(tuple(shape), dtype=dtype, device=device)
            return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device=device)

    def like(self, tensor: Tensor) -> Tensor:
        """Give an absent tensor with the shape that user code sees of ``tensor``."""
        if is_absent(tensor):
            return tensor
        shape = seen_shape(tensor)
        stride = tensor.stride() if tensor.layout == torch.strided and shape == tuple(tensor.shape) else None
        return self.make(shape, stride, dtype=tensor.dtype, device=tensor.device)

    def parameter(self, parameter: Tensor, *, device: torch.device, differentiates: bool = False) -> Tensor:
        """Give an absent tensor that passes for a parameter."""
        twin = self.make(parameter.shape, None, dtype=parameter.dtype, device=device)
        twin._is_param = True  # torch asks this, not the class
        return twin.requires_grad_(differentiates and parameter.requires_grad)


def become(absent: Tensor, present: Tensor, value: ValueId) -> None:
    """Put a received tensor in the place of an absent one, whoever holds it."""
    exchange(absent, present)
    number(absent, value)


def vanish(present: Tensor, absent: Tensor, value: ValueId) -> None:
    """Put an absent tensor in the place of one that was written to with absent values."""
    exchange(present, absent)
    number(present, value)
