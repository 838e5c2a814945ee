"""Where an optimizer's state lives between steps, and how a step gets at it stretch by stretch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Use = Literal["weights", "gradients"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """A stretch of several state vectors that a step is about to read and write."""

    tensors: Mapping[str, Tensor]
    start: int
    stop: int

    def views(self) -> dict[str, Tensor]:
        """Give the stretch of each vector, where it lies."""
        return {key: tensor[self.start : self.stop] for key, tensor in self.tensors.items()}


@dataclass(slots=True, kw_only=True)
class Transfers:
    """What a step moved for state that lives elsewhere, and how long it waited for it.

    Attributes:
        read_bytes: State that was brought to where it is worked on, and gradients and weights with it.
        written_bytes: What was taken back.
        stall_s: Time in which the step could do nothing but wait.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    stall_s: float = 0.0

    def take(self) -> Transfers:
        """Give what has been counted and begin anew."""
        taken = Transfers(read_bytes=self.read_bytes, written_bytes=self.written_bytes, stall_s=self.stall_s)
        self.read_bytes, self.written_bytes, self.stall_s = 0, 0, 0.0
        return taken


class StateHome(ABC):
    """A place for optimizer state."""

    is_elsewhere = True
    """Whether a step moves anything."""

    chunk_numel = 1 << 22
    """Elements of a stretch: 16 MiB in fp32, long enough for a kernel, short enough to go beside another."""

    def __init__(self) -> None:
        self.transfers = Transfers()

    @abstractmethod
    def reserve(self, num_bytes: int) -> None:
        """Make sure that there is room.

        Raises:
            LayoutError: There isn't, or the place can't be used; the message says what is there.
        """

    @abstractmethod
    def allocate(self, like: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Give zeros with the shape of a parameter's local part; they live as long as the tensor does."""

    @abstractmethod
    def visiting(self, visits: Sequence[Visit]) -> AbstractContextManager[Iterator[dict[str, Tensor]]]:
        """Lend one stretch after the other for work in place; a stretch is done when the next one is asked for."""

    @abstractmethod
    def bring(self, part: Tensor, *, dtype: torch.dtype, use: Use) -> Tensor:
        """Give a stretch of weights or gradients where state is worked on: itself, or a copy."""

    @abstractmethod
    def send(self, part: Tensor, to: Tensor) -> None:
        """Write a stretch of new weights into a parameter."""


class DeviceHome(StateHome):
    """State beside its parameters; everything is worked on where it lies."""

    is_elsewhere = False

    def reserve(self, num_bytes: int) -> None:
        """Leave it to the allocator, which knows."""

    def allocate(self, like: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Give zeros beside the parameter."""
        return torch.zeros(like.shape, dtype=dtype, device=like.device)

    def visiting(self, visits: Sequence[Visit]) -> AbstractContextManager[Iterator[dict[str, Tensor]]]:
        """Lend views."""
        return nullcontext(visit.views() for visit in visits)

    def bring(self, part: Tensor, *, dtype: torch.dtype, use: Use) -> Tensor:
        """Give the stretch itself, or a cast of it."""
        return part.to(dtype)

    def send(self, part: Tensor, to: Tensor) -> None:
        """Write."""
        to.copy_(part)

    def __repr__(self) -> str:
        return "DeviceHome()"
