"""How much of the time is training where machines fail: checkpoints, lost steps and restarts counted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trireme.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Share of the time that moves training forward, and how often to save for that."""

    ratio: float
    interval_s: float
    mtbf_s: float


def estimate_goodput(*, num_nodes: int, node_mtbf_s: float, checkpoint_s: float, restart_s: float = 0.0) -> Goodput:
    """Give the goodput with checkpoints as often as pays.

    Args:
        num_nodes: A failure of any of them stops all.
        node_mtbf_s: Mean time between failures of one.
        checkpoint_s: What training stands still for a checkpoint.
        restart_s: From a failure until training goes on.

    Raises:
        LayoutError: A time is not above zero, or failures come faster than checkpoints.

    Source:
        Young 1974, "A first order approximation to the optimum checkpoint interval"; Daly 2006, "A higher order
        estimate of the optimum checkpoint interval for restart dumps", equation 37.
    """
    for key, value in (("node_mtbf_s", node_mtbf_s), ("checkpoint_s", checkpoint_s)):
        if not value > 0:
            raise LayoutError("search.not_positive", key=key, value=value)
    mtbf_s = node_mtbf_s / num_nodes
    if checkpoint_s >= 2 * mtbf_s:
        raise LayoutError("search.fails_too_often", mtbf=f"{mtbf_s:.0f}", checkpoint=f"{checkpoint_s:.0f}")
    share = math.sqrt(checkpoint_s / (2 * mtbf_s))
    interval_s = math.sqrt(2 * checkpoint_s * mtbf_s) * (1 + share / 3 + share**2 / 9) - checkpoint_s
    lost = checkpoint_s / (interval_s + checkpoint_s) + ((interval_s + checkpoint_s) / 2 + restart_s) / mtbf_s
    return Goodput(ratio=max(0.0, 1.0 - lost), interval_s=interval_s, mtbf_s=mtbf_s)
