"""Optimizer state in host memory: pinned where a device copies faster from that, stepped on by the host's kernels."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

import psutil
import torch
from torch import Tensor

from trireme.errors import LayoutError
from trireme.mesh import host_device, wants_pinned_memory
from trireme.parallel.state_home import StateHome, Use, Visit
from trireme.units import format_bytes


class HostHome(StateHome):
    """State beside the host's kernels; gradients come over, weights go back.

    On a device of its own memory a stretch's gradient is copied through pinned buffers that stay for the run, and new
    weights go back while the next stretch is stepped on.

    Args:
        device: Where weights and gradients are.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._host = host_device()
        self._pins = wants_pinned_memory(device)
        self._buffers: dict[tuple[Use, torch.dtype], Tensor] = {}

    def reserve(self, num_bytes: int) -> None:
        """Refuse what the host's memory can't take."""
        free = psutil.virtual_memory().available
        if num_bytes > free:
            raise LayoutError("parallel.host_full", needs=format_bytes(num_bytes), free=format_bytes(free))

    def allocate(self, like: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Give zeros in host memory."""
        return torch.zeros(like.shape, dtype=dtype, device=self._host, pin_memory=self._pins)

    def visiting(self, visits: Sequence[Visit]) -> AbstractContextManager[Iterator[dict[str, Tensor]]]:
        """Lend views: it is worked on where it lies."""
        return nullcontext(visit.views() for visit in visits)

    def bring(self, part: Tensor, *, dtype: torch.dtype, use: Use) -> Tensor:
        """Copy a stretch to the host; one that is there is given as it is."""
        if part.device.type == self._host.type:
            return part.to(dtype)
        started_s = time.perf_counter()
        buffer = self._buffer(part, use)
        buffer.copy_(part)  # waits for it, and for what was sent from this buffer before
        self.transfers.stall_s += time.perf_counter() - started_s
        self.transfers.read_bytes += part.numel() * part.element_size()
        return buffer.to(dtype)

    def send(self, part: Tensor, to: Tensor) -> None:
        """Copy new weights into a parameter; over a bus that goes on beside the next stretch."""
        if to.device.type != self._host.type:
            self.transfers.written_bytes += to.numel() * to.element_size()
        to.copy_(part.to(to.dtype), non_blocking=self._pins)

    @property
    def buffer_bytes(self) -> int:
        """Pinned memory for copies on their way."""
        return sum(each.numel() * each.element_size() for each in self._buffers.values())

    def _buffer(self, part: Tensor, use: Use) -> Tensor:
        key = (use, part.dtype)
        held = self._buffers.get(key)
        if held is None or held.numel() < part.numel():
            held = torch.empty(part.numel(), dtype=part.dtype, device=self._host, pin_memory=self._pins)
            self._buffers[key] = held
        return held[: part.numel()].view(part.shape)

    def __repr__(self) -> str:
        return "HostHome()"
