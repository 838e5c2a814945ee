"""The memory that a snapshot lies in while the training goes on: one stretch, made once, shared with the writer.

It has no name in any file system, so nothing of it is left when its processes are gone, however they went.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING

import psutil

from trireme.errors import CheckpointError
from trireme.units import format_bytes

if TYPE_CHECKING:
    import torch

ALIGN_BYTES = 64
_GRAIN_BYTES = 1 << 20
_SPARE_RATIO = 0.9
"""Of the memory that is free, how much a snapshot may take; beyond it the machine begins to swap or to kill."""


class Arena:
    """Bytes that this process fills and its writer reads."""

    def __init__(self, *, device: torch.device | None = None) -> None:
        self.descriptor = _anonymous_file()
        self.size_bytes = 0
        self._device = device
        self._map: mmap.mmap | None = None
        self._bytes: torch.Tensor | None = None

    @property
    def bytes(self) -> torch.Tensor:
        """Return all of it, flat."""
        assert self._bytes is not None, "nothing was reserved"
        return self._bytes

    def reserve(self, size_bytes: int) -> None:
        """Make it at least this large, every page there, so that filling it later costs a copy and no more.

        What was in it is lost when it grows.

        Raises:
            CheckpointError: The machine hasn't that much memory free.
        """
        if size_bytes <= self.size_bytes:
            return
        size_bytes = -(-size_bytes // _GRAIN_BYTES) * _GRAIN_BYTES
        free_bytes = psutil.virtual_memory().available + self.size_bytes
        if size_bytes > free_bytes * _SPARE_RATIO:
            raise CheckpointError(
                "checkpoint.no_memory", needed=format_bytes(size_bytes), free=format_bytes(free_bytes)
            )
        self._release()
        os.ftruncate(self.descriptor, size_bytes)
        self._map = mmap.mmap(self.descriptor, size_bytes)
        self._bytes = _tensor_over(self._map, device=self._device)
        self.size_bytes = size_bytes

    def view(self, offset_bytes: int, size_bytes: int) -> memoryview:
        """Return a stretch as this process sees it."""
        assert self._map is not None, "nothing was reserved"
        return memoryview(self._map)[offset_bytes : offset_bytes + size_bytes]

    def close(self) -> None:
        """Give the memory back."""
        self._release()
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def _release(self) -> None:
        if self._bytes is not None:
            from trireme.mesh import unpin_host_memory

            unpin_host_memory(self._bytes, device=self._device)
        # The map itself goes with the last tensor over it: closing it under one would be a crash.
        self._bytes, self._map, self.size_bytes = None, None, 0


def _tensor_over(memory: mmap.mmap, *, device: torch.device | None) -> torch.Tensor:
    import torch

    from trireme.mesh import pin_host_memory

    found = torch.frombuffer(memory, dtype=torch.uint8)
    found.zero_()  # every page is there from now on
    pin_host_memory(found, device=device)
    return found


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("trireme-checkpoint", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
