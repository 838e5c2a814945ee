"""``loss.png``: training loss, its smoothed course, evaluations and the learning rate in one picture."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from trireme.observe.atomic import write_atomic
from trireme.observe.curve import Band, Curve, gaps, smooth, thin
from trireme.observe.observer import Watcher
from trireme.observe.report import EvalReport, Event, StepReport
from trireme.observe.run_folder import RunFolder
from trireme.observe.strict_json import read_jsonl
from trireme.words import say

_TRAIN, _EVAL, _BAD, _LR, _GRID = "#2563a8", "#d9691e", "#c02727", "#5b6470", "#e3e6ea"
_DRAW_SHARE = 0.02


class LossPlot(Watcher):
    """Draws at evaluations and at the end; never more than a fiftieth of the time, and never stops a run."""

    def __init__(self, folder: RunFolder, *, notice: Callable[[Event], None] = lambda event: None) -> None:
        self._path = folder.plot_path
        self._title = folder.path.name
        self._notice = notice
        self._curve = Curve()
        self._curve.load(steps=read_jsonl(folder.log_path), evals=read_jsonl(folder.evals_path))
        self._next_draw_s = 0.0
        self._is_stale = self._has_failed = False

    def on_step(self, report: StepReport) -> None:
        """Remember the step."""
        self._curve.add_step(report.step, loss=report.loss, lr=report.lr, skipped=report.skipped)
        self._is_stale = True

    def on_eval(self, report: EvalReport) -> None:
        """Remember the evaluation, and draw."""
        self._curve.add_eval(report.step, loss=report.loss)
        self._is_stale = True
        if time.monotonic() >= self._next_draw_s:
            self._draw()

    def close(self) -> None:
        """Draw what was not drawn yet."""
        if self._is_stale:
            self._draw()

    def _draw(self) -> None:
        start_s = time.monotonic()
        try:
            draw_curve(self._curve, path=self._path, title=self._title)
            self._is_stale = False
        except Exception as error:  # a broken matplotlib or a full disk costs a picture, not a run
            self._warn_once(error)
        now_s = time.monotonic()
        self._next_draw_s = now_s + (now_s - start_s) / _DRAW_SHARE

    def _warn_once(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            text = say("observe.plot_failed", path=self._path, reason=error)
            self._notice(Event(kind="plot", level="warning", text=text))


def draw_curve(curve: Curve, *, path: Path, title: str) -> None:
    """Draw ``curve`` to ``path``, whole or not at all."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.4), dpi=140, layout="constrained")
    loss_axes, lr_axes = figure.subplots(2, 1, sharex=True, height_ratios=[5, 1])
    _draw_loss(loss_axes, curve)
    _draw_lr(lr_axes, curve)
    loss_axes.set_title(title, loc="left", fontweight="bold")
    for axes in (loss_axes, lr_axes):
        axes.grid(color=_GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    picture = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(picture, format="png")
    write_atomic(path, picture.getvalue())


def _draw_loss(axes: Any, curve: Curve) -> None:
    steps, losses = np.asarray(curve.steps), np.asarray(curve.losses)
    finite = np.isfinite(losses)
    band = thin(steps[finite], losses[finite])
    _draw_train(axes, band)
    _draw_eval(axes, curve)
    _mark_gaps(axes, gaps(curve))
    _fit_height(axes, band, evals=np.asarray(curve.eval_losses))
    axes.set_ylabel("loss (nats per token)")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False, loc="upper right")


def _draw_train(axes: Any, band: Band) -> None:
    count = len(band.steps)
    if not count:
        return
    if np.any(band.high > band.low):
        axes.fill_between(band.steps, band.low, band.high, color=_TRAIN, alpha=0.15, linewidth=0)
    many = count >= 20
    mark = "." if count == 1 else None
    axes.plot(
        band.steps,
        band.mean,
        color=_TRAIN,
        alpha=0.35 if many else 1.0,
        linewidth=0.9,
        marker=mark,
        label=None if many else "train",
    )
    if many:
        course = smooth(band.mean, half_width=max(2, count // 50))
        axes.plot(band.steps, course, color=_TRAIN, linewidth=2, label="train (smoothed)")


def _draw_eval(axes: Any, curve: Curve) -> None:
    steps, losses = np.asarray(curve.eval_steps), np.asarray(curve.eval_losses)
    finite = np.isfinite(losses)
    steps, losses = steps[finite], losses[finite]
    if not len(steps):
        return
    best = int(np.argmin(losses))
    label = f"eval (best {losses[best]:.4f} at step {steps[best]:.0f})"
    axes.plot(steps, losses, color=_EVAL, linewidth=1.4, marker="o", markersize=4.5, label=label, zorder=3)
    axes.plot(steps[best], losses[best], color=_EVAL, marker="o", markersize=11, fillstyle="none", zorder=3)


def _mark_gaps(axes: Any, steps: np.ndarray) -> None:
    """A red tick on the step axis for each step that taught nothing, at most a few hundred of them."""
    if len(steps):
        shown = steps[:: -(-len(steps) // 300)]
        place = axes.get_xaxis_transform()
        label = f"not finite or skipped ({len(steps)})"
        axes.vlines(shown, 0, 0.06, transform=place, color=_BAD, linewidth=1.4, label=label, zorder=4)


def _fit_height(axes: Any, band: Band, *, evals: np.ndarray) -> None:
    """Let single spikes run out of the picture, so that they don't flatten everything else."""
    values = np.concatenate([band.mean, evals[np.isfinite(evals)]])
    if len(values) < 20:
        return
    bottom, low, high = values.min(), np.quantile(band.low, 0.02), np.quantile(values, 0.98)
    low = min(bottom, low)
    ceiling = values.max() if values.max() <= low + 1.5 * (high - low) else low + 1.25 * (high - low)
    margin = 0.06 * (ceiling - low) or 0.1
    axes.set_ylim(low - margin, ceiling + margin)


def _draw_lr(axes: Any, curve: Curve) -> None:
    band = thin(np.asarray(curve.steps), np.asarray(curve.lrs))
    axes.plot(band.steps, band.mean, color=_LR, linewidth=1.4)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("lr")
    axes.set_xlabel("step")
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    axes.xaxis.get_major_locator().set_params(integer=True)
