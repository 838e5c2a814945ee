"""Training as a person sees it: a bar and the step line, evaluations, samples, warnings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from trireme.observe.observer import Watcher
from trireme.observe.report import EvalReport, Event, SampleReport, StepReport
from trireme.observe.screen import Line, Screen
from trireme.observe.step_line import StepWindow, format_loss, format_numbers, format_place
from trireme.units import format_duration
from trireme.words import say

_LIVE_GAP_S = 0.1
_FIRST_GAP_S, _LAST_GAP_S = 2.0, 30.0
_GAP_RATIO = 0.02
_LINES_ALWAYS = 100


class Console(Watcher):
    """Shows a run on a terminal (a live bar below the lines) or in a log (lines with a small bar).

    Lines come every ``every_steps`` steps; with ``throttle`` also no more often than a person can read:
    one in two seconds, and once a hundredth of the run would be many lines, one in up to thirty. The first and
    the last step, a step that is evaluated, evaluations, samples and warnings always come. ``off`` leaves
    warnings alone.
    """

    def __init__(
        self,
        *,
        every_steps: int = 1,
        throttle: bool = True,
        progress: Literal["auto", "bar", "lines", "off"] = "auto",
        screen: Screen | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.screen = screen or Screen(mode="lines" if progress == "off" else progress)
        self._is_off = progress == "off"
        self._every_steps = every_steps
        self._throttle = throttle
        self._clock = clock
        self._window = StepWindow()
        self._started_s = self._last_line_s = self._last_live_s = clock()
        self._first: tuple[int, float] | None = None
        self._last: StepReport | None = None

    def on_step(self, report: StepReport) -> None:
        """Take the step in; write a line if one is due."""
        now_s = self._clock()
        is_first = self._first is None
        if self._first is None:
            self._first = (report.step, now_s)
        self._window.add(report)
        self._last = report
        if self._is_off:
            return
        self._show_live(report, now_s)
        if is_first or report.step == report.max_steps or self._is_due(report, now_s):
            self._write_step(report, now_s)

    def on_eval(self, report: EvalReport) -> None:
        """Write the evaluation's line, after that of the step it belongs to."""
        if self._is_off:
            return
        if self._last is not None and self._window.num_steps:
            self._write_step(self._last, self._clock())
        text = say(
            "observe.eval",
            step=report.step,
            loss=format_loss(report.loss),
            perplexity=f"{report.perplexity:.4g}",
            seqs=report.num_seqs,
            duration=format_duration(report.eval_s),
        )
        best = f"  {say('observe.best')}" if report.is_best else ""
        self.screen.write(text + best, tone="good")

    def on_sample(self, report: SampleReport) -> None:
        """Write the sample as a block of its own."""
        if self._is_off:
            return
        self.screen.write(say("observe.sample", step=report.step), tone="quiet")
        for line in _quote(report.prompt + report.text, width=self.screen.width):
            self.screen.write(line)

    def on_event(self, event: Event) -> None:
        """Write the event; a warning is seen with ``off`` too."""
        if event.level == "warning":
            self.screen.write(say("observe.warning", text=event.text), tone="warning")
        elif not self._is_off:
            self.screen.write(event.text, tone="quiet")

    def show(self, lines: Iterable[Line]) -> None:
        """Write a report that always comes: before the first step, after the last."""
        self.screen.write_lines(lines)

    def close(self) -> None:
        """Take the live bar away."""
        self.screen.end_live()

    def _is_due(self, report: StepReport, now_s: float) -> bool:
        if report.step % self._every_steps:
            return False
        if not self._throttle:
            return True
        since_s = now_s - self._last_line_s
        long_gap_s = min(_LAST_GAP_S, _GAP_RATIO * (now_s - self._started_s))
        is_far = self._window.num_steps * _LINES_ALWAYS >= report.max_steps
        return since_s >= _FIRST_GAP_S and (is_far or since_s >= long_gap_s)

    def _write_step(self, report: StepReport, now_s: float) -> None:
        place = self._place(report, bar_cells=12)
        numbers = format_numbers(self._window, last=report)
        self.screen.write(f"{place}  {numbers}  {self._left(report, now_s)}".rstrip())
        self._window = StepWindow()
        self._last_line_s = now_s

    def _show_live(self, report: StepReport, now_s: float) -> None:
        if not self.screen.has_live or (now_s - self._last_live_s < _LIVE_GAP_S and report.step < report.max_steps):
            return
        self._last_live_s = now_s
        cells = max(10, min(60, (self.screen.width or 80) - 40))
        single = StepWindow()
        single.add(report)
        place = f"{self._place(report, bar_cells=cells)}  {self._left(report, now_s)}"
        self.screen.show_live(place, format_numbers(single, last=report))

    def _place(self, report: StepReport, *, bar_cells: int) -> str:
        style = self.screen.bar_style
        return format_place(report.step, max_steps=report.max_steps, bar_cells=bar_cells, style=style)

    def _left(self, report: StepReport, now_s: float) -> str:
        left_s = self._left_s(report, now_s)
        return say("observe.left", duration=format_duration(left_s)) if left_s > 0 else ""

    def _left_s(self, report: StepReport, now_s: float) -> float:
        """Steps left times wall time a step since the first, evaluations and saving included."""
        assert self._first is not None, "set by the first step"
        first_step, first_s = self._first
        done = report.step - first_step
        return (report.max_steps - report.step) * ((now_s - first_s) / done if done else report.step_s)


def _quote(text: str, *, width: int | None) -> Iterator[str]:
    """Each line behind a rule; on a terminal folded at its width, wide characters counted as two cells."""
    for line in text.splitlines() or [""]:
        for piece in _fold(line, width - 4 if width else None):
            yield f"  │ {piece}"


def _fold(line: str, width: int | None) -> list[str]:
    if width is None:
        return [line]
    from rich.cells import chop_cells

    return chop_cells(line, max(8, width)) or [""]
