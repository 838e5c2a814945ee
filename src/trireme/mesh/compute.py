"""How a device computes: threads, autocast, fused updates, copies that overlap."""

from __future__ import annotations

import os

import torch


def set_threads(num_threads: int | None) -> int:
    """Set and return the number of threads that CPU operators use.

    None takes what ``OMP_NUM_THREADS`` says, else the cores this process may use.

    A sum's order, and so its last bits, depends on the number of threads: a run that must repeat
    bit for bit fixes it.
    """
    count = num_threads or _threads_told() or usable_cores()
    torch.set_num_threads(count)
    return count


def _threads_told() -> int | None:
    told = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(told) if told.isdigit() and int(told) > 0 else None


def usable_cores() -> int:
    """Return the cores that this process may run on, which a container often limits."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def autocast_kind(device: torch.device) -> str:
    """Return what ``torch.autocast(device_type=...)`` and ``GradScaler(device=...)`` want to hear."""
    return device.type


def has_fused_optimizer(device: torch.device) -> bool:
    """Tell whether ``AdamW(fused=True)`` works on this device, by one step of a single number."""
    number = torch.nn.Parameter(torch.zeros(1, device=device))
    number.grad = torch.zeros_like(number)
    try:
        torch.optim.AdamW([number], fused=True).step()
    except (RuntimeError, NotImplementedError):
        return False
    return True


def allow_tf32(device: torch.device) -> bool:
    """Let fp32 matrix products round their inputs to TF32 from now on; returns whether this device has that format."""
    if device.type != "cuda" or (torch.version.hip is None and torch.cuda.get_device_capability(device) < (8, 0)):
        return False
    torch.set_float32_matmul_precision("high")
    return True


def host_device() -> torch.device:
    """Return the host as a device: where offloaded state lives."""
    return torch.device("cpu")


def wants_pinned_memory(device: torch.device) -> bool:
    """Tell whether copies to this device overlap only from pinned host memory."""
    return device.type not in ("cpu", "mps")


def collective_backend(device: torch.device) -> str:
    """Return the process-group backend for tensors on this device (``gloo``, ``nccl``, ``hccl`` ...)."""
    return str(torch.distributed.get_default_backend_for_device(device))
