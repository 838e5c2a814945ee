"""Where a run keeps what doesn't wait on its device, and what that will cost each step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from trireme.config import OffloadSection
from trireme.parallel import ActivationOffload, ChunkedOptimizer, DiskHome, HostHome, StateHome, local_shard
from trireme.units import format_bytes
from trireme.words import say

Notice = Callable[[str], None]


def build_home(section: OffloadSection, *, device: torch.device, run_dir: Path) -> StateHome | None:
    """Return where optimizer state lives; None beside the weights."""
    match section.optimizer:
        case "host":
            return HostHome(device)
        case "disk":
            return DiskHome(Path(section.path) if section.path else run_dir / "offload")
        case _:
            return None


def build_activations(section: OffloadSection, *, module: nn.Module, device: torch.device) -> ActivationOffload | None:
    """Return what moves activations to the host; None where they stay."""
    if section.activations == "none":
        return None
    return ActivationOffload(module, device=device, min_bytes=section.activations_min_bytes)


def tell_cost(optimizer: torch.optim.Optimizer, *, notice: Notice) -> None:
    """Say how much each step moves, and how long that takes at the rate that was measured."""
    if not isinstance(optimizer, ChunkedOptimizer):
        return
    home, size = optimizer.home, optimizer.state_bytes
    if isinstance(home, DiskHome):
        values = {"size": format_bytes(size), "moved": format_bytes(2 * size), "path": home.folder}
        rate, took_s = format_bytes(home.bytes_per_s), 2 * size / home.bytes_per_s
        notice(say("job.offload_disk", **values, rate=rate, seconds=f"{took_s:.2g}"))
    elif isinstance(home, HostHome):
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        weights = sum(local_shard(each).numel() * each.element_size() for each in parameters)
        notice(say("job.offload_host", size=format_bytes(size), moved=format_bytes(2 * weights)))
