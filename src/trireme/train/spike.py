"""Whether a step's loss or gradient norm is far above those of late.

Mean and variance fade exponentially; of the gradient norm it is the logarithm that is looked at, for norms spread over
powers of ten. What they are is part of a checkpoint, so a resume judges as the unbroken run would.
"""

from __future__ import annotations

import math

from trireme.train.step_result import StepCounters

_FADE = 0.05
"""Weight of the newest step: about the last twenty steps count."""

_FIRST_STEPS = 20
"""Steps before anything can be a spike: there is no trend yet."""

_LEAST_LOSS_RATIO = 0.02
_LEAST_LOG_NORM = 0.2
"""Least standard deviations: where nothing varies, the smallest change is no spike."""


def is_spike(loss: float, norm: float, *, counters: StepCounters, sigmas: float) -> bool:
    """Say whether a finite step stands out."""
    if counters.num_trended < _FIRST_STEPS or not math.isfinite(loss) or not math.isfinite(norm):
        return False
    loss_spread = max(math.sqrt(counters.loss_var), _LEAST_LOSS_RATIO * abs(counters.loss_mean))
    norm_spread = max(math.sqrt(counters.norm_var), _LEAST_LOG_NORM)
    far_loss = loss > counters.loss_mean + sigmas * loss_spread
    return far_loss or _log(norm) > counters.norm_mean + sigmas * norm_spread


def add_to_trend(loss: float, norm: float, *, counters: StepCounters) -> None:
    """Have a step that was no spike count for those to come."""
    weight = max(_FADE, 1.0 / (counters.num_trended + 1))
    counters.loss_mean, counters.loss_var = _moved(counters.loss_mean, counters.loss_var, loss, weight=weight)
    counters.norm_mean, counters.norm_var = _moved(counters.norm_mean, counters.norm_var, _log(norm), weight=weight)
    counters.num_trended += 1


def _moved(mean: float, var: float, value: float, *, weight: float) -> tuple[float, float]:
    change = value - mean
    return mean + weight * change, (1.0 - weight) * (var + weight * change * change)


def _log(norm: float) -> float:
    return math.log(max(norm, 1e-30))
