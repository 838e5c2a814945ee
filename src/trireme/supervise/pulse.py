"""A rank's heartbeat: a few numbers in a memory-mapped file, written by the rank and read by its supervisor.

A beat is a handful of stores into memory, so it costs nothing beside a step and works while the network doesn't.
Times are those of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

PULSE_VARIABLE = "TRIREME_PULSE"
"""Names the file of this rank; absent where nobody watches."""

Phase = Literal[
    "starting", "joining", "preparing", "first_step", "step", "evaluating", "sampling", "saving", "ending", "script"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
SHORT: frozenset[Phase] = frozenset({"step"})
"""Phases in which a rank that stands still is soon noticed; the others may rightly be long."""

BEGINNING: frozenset[Phase] = frozenset({"starting", "joining"})
"""Phases before a rank has found the others."""

LATER: frozenset[Phase] = frozenset({"step", "evaluating", "sampling", "saving", "ending"})
"""Phases that a rank comes to after its first step."""

_LAYOUT = struct.Struct("<qqqqddd")
_FADE = 0.9
"""How much of the longest time between two beats the next one remembers: a first step that compiles is no measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """What a rank last wrote.

    Attributes:
        count: Beats so far.
        step: Steps done.
        phase: What it is about.
        settled: Whether the run folder is this run's from here on.
        at_s: When, on the machine's monotonic clock.
        gap_s: About the longest time between two beats of late.
        save_s: The longest save so far.
    """

    count: int
    step: int
    phase: Phase
    settled: bool
    at_s: float
    gap_s: float
    save_s: float


class Pulse:
    """One rank's side of the file."""

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(fd, _LAYOUT.size)
            self._map = mmap.mmap(fd, _LAYOUT.size)
        finally:
            os.close(fd)
        self._count = self._step = 0
        self._phase: Phase = "starting"
        self._settled = False
        self._at_s, self._gap_s, self._save_s = time.monotonic(), 0.0, 0.0
        self.beat()

    def beat(
        self, phase: Phase | None = None, *, step: int | None = None, settled: bool = False, save_s: float = 0.0
    ) -> None:
        """Say that this rank is alive, and what it is about; ``save_s`` is how long a save took to be durable."""
        now_s = time.monotonic()
        passed_s = now_s - self._at_s
        if self._phase in ("first_step", "step"):
            self._gap_s = max(passed_s, self._gap_s * _FADE)
        self._save_s = max(self._save_s, save_s)
        self._count += 1
        self._at_s = now_s
        self._phase = phase or self._phase
        self._step = self._step if step is None else step
        self._settled = self._settled or settled
        number = PHASES.index(self._phase)
        values = (self._count, self._step, number, self._settled, now_s, self._gap_s, self._save_s)
        self._map[:] = _LAYOUT.pack(*values)


def read_pulse(path: Path) -> Beat | None:
    """Return what a rank last wrote; None if it has not begun to."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if len(data) != _LAYOUT.size:
        return None
    count, step, phase, settled, at_s, gap_s, save_s = _LAYOUT.unpack(data)
    if not count or not 0 <= phase < len(PHASES):
        return None
    return Beat(
        count=count, step=step, phase=PHASES[phase], settled=bool(settled), at_s=at_s, gap_s=gap_s, save_s=save_s
    )


_own: Pulse | None = None


def open_pulse() -> None:
    """Begin to beat, where the environment names a file."""
    global _own
    path = os.environ.get(PULSE_VARIABLE)
    _own = Pulse(Path(path)) if path else None


def is_supervised() -> bool:
    """Whether somebody watches this rank."""
    return _own is not None


def beat(phase: Phase | None = None, *, step: int | None = None, settled: bool = False, save_s: float = 0.0) -> None:
    """Beat, where somebody watches; else do nothing."""
    if _own is not None:
        _own.beat(phase, step=step, settled=settled, save_s=save_s)


def own_step() -> int:
    """Return the steps this rank has told about; zero where nobody watches."""
    return 0 if _own is None else _own._step
