"""Progress of long work other than training steps: reading, tokenising, building."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from trireme.observe.bar import draw_bar
from trireme.observe.screen import Screen
from trireme.units import format_count, format_duration
from trireme.words import say

_LIVE_GAP_S = 0.1
_LINE_GAP_S = 2.0


class WorkProgress:
    """One task at a time: a live bar on a terminal, a line in two seconds elsewhere, one line at the end.

    Writes to stderr unless a screen is given, so that a verb's output stays clean. A task that is over in
    half a second says nothing.
    """

    def __init__(self, screen: Screen | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen or Screen(sys.stderr)
        self._clock = clock
        self._label: str | None = None

    def start(self, label: str, total: int | None) -> None:
        """Begin a task of ``total`` units, or of unknown length."""
        self.finish()
        self._label, self._total, self._done = label, total, 0
        self._started_s = self._shown_s = self._clock()

    def advance(self, n: int) -> None:
        """Count ``n`` more units; show it if the last time is long enough ago."""
        if self._label is None:
            return
        self._done += n
        now_s = self._clock()
        if now_s - self._shown_s >= (_LIVE_GAP_S if self._screen.has_live else _LINE_GAP_S):
            self._shown_s = now_s
            show = self._screen.show_live if self._screen.has_live else self._screen.write
            show(self._line(now_s - self._started_s))

    def finish(self) -> None:
        """End the task; says how much was done in what time."""
        if self._label is None:
            return
        self._screen.end_live()
        duration_s = self._clock() - self._started_s
        if duration_s >= 0.5:
            done, duration = format_count(self._done), format_duration(duration_s)
            self._screen.write(say("observe.work_done", label=self._label, done=done, duration=duration), tone="quiet")
        self._label = None

    def _line(self, duration_s: float) -> str:
        done = format_count(self._done)
        if not self._total:
            return f"{self._label}  {done}  {format_duration(duration_s)}"
        ratio = min(1.0, self._done / self._total)
        bar = draw_bar(ratio, width=20, style=self._screen.bar_style)
        left_s = duration_s * (1 / ratio - 1) if ratio else 0.0
        left = say("observe.left", duration=format_duration(left_s))
        return f"{self._label}  {bar} {ratio:4.0%}  {done}/{format_count(self._total)}  {left}"
