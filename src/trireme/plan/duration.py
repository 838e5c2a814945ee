"""How long a step takes, before one was made."""

from __future__ import annotations

ASSUMED_MFU = 0.4
"""Share of the peak that a step reaches where nothing was measured; said beside every figure made with it.

Source:
    Published training runs reach 0.38 to 0.43 (Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 4).
"""


def estimate_step_s(*, step_flops: float, peak_flops_per_s: float, mfu: float = ASSUMED_MFU) -> float:
    """Return the time of a step that does ``step_flops`` at ``mfu`` of the peak."""
    return step_flops / (peak_flops_per_s * mfu)
