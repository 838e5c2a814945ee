"""How fast a device really multiplies, in a fraction of a second."""

from __future__ import annotations

import time

import torch

_WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
"""From what a small CPU does in a millisecond to what fills a large GPU."""

_LONGEST_RATIO = 0.5
"""A width is worth trying if one product of it should take at most this share of the time allowed."""

_SHARE_RATIO = 0.1
"""Share of the time allowed that one width gets in one round."""


def measure_matmul_flops_per_s(device: torch.device, dtype: torch.dtype, *, limit_s: float = 0.25) -> float:
    """Return the best rate at which ``device`` multiplies square matrices of ``dtype`` within ``limit_s``.

    Widths are tried upwards, as far as the best rate so far tells that a product fits into the time,
    and again in rounds: on a busy machine a single round may meet a moment when other programs run.

    Units: FLOP/s, a multiply and an add counted as two.
    """
    deadline_s = time.perf_counter() + limit_s
    best = 0.0
    while True:
        for width in _WIDTHS:
            foreseen_s = 2 * width**3 / best if best else 0.0
            if foreseen_s > _LONGEST_RATIO * limit_s:
                break
            if best and time.perf_counter() + foreseen_s > deadline_s:
                return best
            best = max(best, _rate(device, dtype, width, share_s=_SHARE_RATIO * limit_s))


def _rate(device: torch.device, dtype: torch.dtype, width: int, *, share_s: float) -> float:
    left = torch.ones(width, width, dtype=dtype, device=device)
    product = torch.empty(width, width, dtype=dtype, device=device)
    torch.mm(left, left, out=product)  # the first call chooses a kernel and packs
    synchronize(device)
    shortest_s, spent_s = float("inf"), 0.0
    while spent_s < share_s:
        start_s = time.perf_counter()
        torch.mm(left, left, out=product)
        synchronize(device)
        taken_s = time.perf_counter() - start_s
        shortest_s, spent_s = min(shortest_s, taken_s), spent_s + taken_s
    return 2 * width**3 / shortest_s


def synchronize(device: torch.device) -> None:
    """Wait until everything queued on ``device`` is done; the CPU queues nothing."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
