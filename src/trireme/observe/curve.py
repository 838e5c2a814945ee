"""The curve behind the picture: losses and learning rates by step, thinned and smoothed for the eye."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True, kw_only=True)
class Curve:
    """Grows with each step and evaluation."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    losses: array[float] = field(default_factory=lambda: array("d"))
    lrs: array[float] = field(default_factory=lambda: array("d"))
    eval_steps: array[float] = field(default_factory=lambda: array("d"))
    eval_losses: array[float] = field(default_factory=lambda: array("d"))

    def add_step(self, step: int, *, loss: float, lr: float, skipped: bool = False) -> None:
        """Add a training step; a skipped one is a gap."""
        self.steps.append(step)
        self.losses.append(math.nan if skipped else loss)
        self.lrs.append(lr)

    def add_eval(self, step: int, *, loss: float) -> None:
        """Add an evaluation."""
        self.eval_steps.append(step)
        self.eval_losses.append(loss)

    def load(self, *, steps: Iterable[Mapping[str, Any]], evals: Iterable[Mapping[str, Any]]) -> None:
        """Take in what the logs of an earlier attempt hold."""
        for line in steps:
            self.add_step(line["step"], loss=line["loss"], lr=line["lr"], skipped=bool(line.get("skipped")))
        for line in evals:
            self.add_eval(line["step"], loss=line["eval_loss"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """A curve of at most so many points: the mean of each stretch of steps, its least and its greatest."""

    steps: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def gaps(curve: Curve) -> np.ndarray:
    """Return the steps whose loss is not a finite number or that were skipped."""
    steps, losses = np.asarray(curve.steps), np.asarray(curve.losses)
    missing: np.ndarray = steps[~np.isfinite(losses)]
    return missing


def thin(steps: np.ndarray, values: np.ndarray, *, max_points: int = 1200) -> Band:
    """Return at most ``max_points`` points; no spike is lost, it stays in ``high``."""
    size = -(-len(steps) // max_points) if len(steps) else 1
    starts = np.arange(0, len(steps), size)
    if not len(starts):
        return Band(steps=steps, mean=values, low=values, high=values)
    counts = np.diff(np.append(starts, len(steps)))
    return Band(
        steps=np.add.reduceat(steps, starts) / counts,
        mean=np.add.reduceat(values, starts) / counts,
        low=np.minimum.reduceat(values, starts),
        high=np.maximum.reduceat(values, starts),
    )


def smooth(values: np.ndarray, *, half_width: int) -> np.ndarray:
    """Return the median of ``half_width`` values on either side: a single spike leaves no trace in it.

    The window is centred, so that the curve does not lag; near the ends it shrinks on both sides alike.
    """
    last = len(values) - 1
    reaches = (min(half_width, index, last - index) for index in range(len(values)))
    return np.array([np.median(values[index - reach : index + reach + 1]) for index, reach in enumerate(reaches)])
