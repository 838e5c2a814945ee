"""How fast a device really moves its memory, in a fraction of a second."""

from __future__ import annotations

import time

import torch

from trireme.mesh.probe import synchronize

_NUMBERS = 16 * 2**20
"""Of fp32 copied at once: 64 MiB, more than any cache that would answer in memory's place."""


def measure_memory_bytes_per_s(device: torch.device, *, limit_s: float = 0.25) -> float:
    """Return the best rate at which ``device`` reads and writes its memory within ``limit_s``.

    Units: bytes read and bytes written both count.
    """
    source = torch.ones(_NUMBERS, device=device)
    target = torch.empty_like(source)
    deadline_s, shortest_s = time.perf_counter() + limit_s, float("inf")
    while True:
        start_s = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        shortest_s = min(shortest_s, time.perf_counter() - start_s)
        if time.perf_counter() > deadline_s:
            return 2 * source.nbytes / shortest_s
