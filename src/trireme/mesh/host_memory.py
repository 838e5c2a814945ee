"""Host memory that a device can copy to and from without the processor's help."""

from __future__ import annotations

from typing import Any

import torch

from trireme.mesh.compute import wants_pinned_memory


def pin_host_memory(values: torch.Tensor, *, device: torch.device | None) -> bool:
    """Pin memory that is already there, such as memory shared with another process; returns whether it is pinned.

    Where the device's library can't, copies are as right and merely slower.
    """
    library = _library(device)
    if library is None or not values.numel():
        return False
    return int(library.cudaHostRegister(values.data_ptr(), values.numel() * values.itemsize, 0)) == 0


def unpin_host_memory(values: torch.Tensor, *, device: torch.device | None) -> None:
    """Take back what ``pin_host_memory`` did; memory that was not pinned stays as it is."""
    library = _library(device)
    if library is not None and values.numel() and values.is_pinned():
        library.cudaHostUnregister(values.data_ptr())


def _library(device: torch.device | None) -> Any:
    if device is None or not wants_pinned_memory(device) or device.type != "cuda":
        return None
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
