"""How fast ranks of one machine exchange, as a latency and a bandwidth: all-reduces of several sizes, timed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trireme.mesh.local import run_on_ranks

_SIZES_BYTES = (1024, 32 * 1024, 1024**2, 8 * 1024**2)
_REPEATS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """What one rank reaches to its neighbour in a ring: a step's cost, and bytes by the second in one direction."""

    latency_s: float
    bytes_per_s: float
    sizes_bytes: tuple[int, ...]
    all_reduce_s: tuple[float, ...]


def measure_link(num_ranks: int, *, sizes_bytes: Sequence[int] = _SIZES_BYTES) -> LinkFigures:
    """Start ranks on this machine's processor, time all-reduces, and give the ring that explains them.

    A ring of n ranks takes 2 (n - 1) steps and moves 2 (n - 1) / n of the bytes over each link.

    Source: Thakur, Rabenseifner, Gropp 2005, section 4.4 (ring all-reduce).
    """
    reports = run_on_ranks(all_reduce_times, num_ranks, sizes_bytes=tuple(sizes_bytes), repeats=_REPEATS)
    seconds = tuple(max(times) for times in zip(*reports, strict=True))
    steps = 2 * (num_ranks - 1)
    small, large = sizes_bytes[0], sizes_bytes[-1]
    slope_s = max(1e-15, (seconds[-1] - seconds[0]) / (large - small))
    return LinkFigures(
        latency_s=max(1e-7, (seconds[0] - small * slope_s) / steps),
        bytes_per_s=steps / num_ranks / slope_s,
        sizes_bytes=tuple(sizes_bytes),
        all_reduce_s=seconds,
    )


def all_reduce_times(*, sizes_bytes: Sequence[int], repeats: int) -> list[float]:
    """Return the shortest time of an all-reduce of each size, as this rank sees it."""
    return [_shortest_s(torch.ones(max(1, size // 4)), repeats) for size in sizes_bytes]


def _shortest_s(tensor: torch.Tensor, repeats: int) -> float:
    dist.all_reduce(tensor)  # the first opens connections
    taken_s = []
    for _ in range(repeats):
        dist.barrier()
        start_s = time.perf_counter()
        dist.all_reduce(tensor)
        taken_s.append(time.perf_counter() - start_s)
    return min(taken_s)
