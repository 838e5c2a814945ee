"""Joining the ranks that a launcher started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from trireme.errors import LayoutError
from trireme.mesh.compute import collective_backend
from trireme.mesh.launch import LaunchEnvironment
from trireme.supervise import beat, strike

COLLECTIVE_TIMEOUT_S = 600.0
"""How long a rank waits for others in one collective: longer than any step, shorter than anyone's patience."""


@contextmanager
def joined_ranks(
    launch: LaunchEnvironment, *, device: torch.device, timeout_s: float = COLLECTIVE_TIMEOUT_S
) -> Iterator[None]:
    """Make the launcher's ranks one process group for as long as the context is open.

    A process that nobody launched is a group of one, without any address. A group that exists is left as it is.

    Raises:
        LayoutError: The ranks did not find each other.
    """
    if dist.is_initialized():
        yield
        return
    join_ranks(launch, device=device, timeout_s=timeout_s)
    try:
        yield
    finally:
        dist.destroy_process_group()


def join_ranks(launch: LaunchEnvironment, *, device: torch.device, timeout_s: float = COLLECTIVE_TIMEOUT_S) -> None:
    """Make the launcher's ranks one process group; whoever calls this ends it."""
    backend, timeout = collective_backend(device), timedelta(seconds=timeout_s)
    # Binding the group to its device lets NCCL connect at once and split groups without another rendezvous.
    bound = device if device.index is not None else None
    if launch.world_size == 1 and not launch.launched:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout, device_id=bound)
        return
    beat("joining")
    lost = strike("init") is not None  # a fault made on purpose: this rank looks for the others where nobody is
    try:
        dist.init_process_group(
            backend,
            init_method="env://" if launch.store_file is None else _store_url(launch.store_file, lost=lost),
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timeout,
            device_id=bound,
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise LayoutError("mesh.no_group", rank=launch.rank, world=launch.world_size, reason=reason) from error
    beat("preparing")


def _store_url(path: str, *, lost: bool) -> str:
    return f"file://{Path(path).resolve()}{'.lost' if lost else ''}"
