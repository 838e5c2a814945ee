"""Finding ranks that live and don't get on: stopped, deadlocked, or never come to the others."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trireme.supervise.failure import Kind
from trireme.supervise.pulse import BEGINNING, SHORT, Beat, read_pulse
from trireme.supervise.session import process_state
from trireme.words import say

_TIMES_OWN = 4.0
"""A step may take this many times the longest of late before it counts as hanging."""

_STOPPED = ("T", "t")
_WAITING = ("distributed", "_functional_collectives")
"""What stands in the stack of a rank that waits for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long what may take.

    Attributes:
        hang_s: A rank that stands still in a step; longer steps make it longer by themselves.
        long_s: A rank that stands still in a phase that may be long (data, compiling, evaluation, a save).
        init_s: All ranks to be there and to have found each other.
    """

    hang_s: float = 10.0
    long_s: float = 1800.0
    init_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Ranks that don't get on, in order of suspicion; ``stopped`` ones were stopped by a signal."""

    kind: Kind
    ranks: tuple[int, ...]
    message: str


def pulse_path(folder: Path, rank: int) -> Path:
    """Return where a rank beats."""
    return folder / f"rank-{rank}.pulse"


def read_beats(folder: Path, ranks: range) -> dict[int, Beat | None]:
    """Return the last beat of each rank."""
    return {rank: read_pulse(pulse_path(folder, rank)) for rank in ranks}


class Watch:
    """Looks at the pulses of one attempt."""

    def __init__(self, *, patience: Patience) -> None:
        self._patience = patience
        self._started_s = time.monotonic()
        self._stopped_s: dict[int, float] = {}

    def look(self, beats: Mapping[int, Beat | None], pids: Mapping[int, int]) -> Verdict | None:
        """Return what is wrong, if something is."""
        return self._stopped(beats, pids) or self._absent(beats) or self._standing(beats)

    def _stopped(self, beats: Mapping[int, Beat | None], pids: Mapping[int, int]) -> Verdict | None:
        """A stopped process will not go on by itself, whatever its phase."""
        now_s = time.monotonic()
        for rank, pid in pids.items():
            if process_state(pid) not in _STOPPED:
                self._stopped_s.pop(rank, None)
            elif now_s - self._stopped_s.setdefault(rank, now_s) > self._patience.hang_s / 2:
                beat = beats.get(rank)
                message = say("launch.stopped_rank", rank=rank, step=beat.step if beat else 0)
                return Verdict(kind="hang", ranks=(rank,), message=message)
        return None

    def _absent(self, beats: Mapping[int, Beat | None]) -> Verdict | None:
        absent = tuple(rank for rank, beat in beats.items() if beat is None or beat.phase in BEGINNING)
        waited_s = time.monotonic() - self._started_s
        if not absent or waited_s <= self._patience.init_s:
            return None
        there = len(beats) - len(absent)
        names = ", ".join(map(str, absent))
        message = say("launch.init_late", limit_s=self._patience.init_s, there=there, world=len(beats), ranks=names)
        return Verdict(kind="init", ranks=absent, message=message)

    def _standing(self, beats: Mapping[int, Beat | None]) -> Verdict | None:
        now_s = time.monotonic()
        known = {rank: beat for rank, beat in beats.items() if beat is not None}
        # While one rank rightly takes long, the others rightly wait for it.
        all_short = all(beat.phase in SHORT for beat in known.values())
        for beat in known.values():
            limit_s = max(self._patience.hang_s, _TIMES_OWN * beat.gap_s) if all_short else self._patience.long_s
            if beat.phase != "script" and beat.phase not in BEGINNING and now_s - beat.at_s > limit_s:
                return self._judge(known, now_s=now_s)
        return None

    def _judge(self, beats: Mapping[int, Beat], *, now_s: float) -> Verdict:
        """Suspect who is behind: the others wait for that one."""
        order = sorted(beats, key=lambda rank: (beats[rank].step, beats[rank].count, beats[rank].at_s))
        beat = beats[order[0]]
        stood_s = now_s - beat.at_s
        message = say("launch.hangs", step=beat.step, phase=beat.phase, stood_s=stood_s)
        return Verdict(kind="hang", ranks=tuple(order), message=message)


def suspect(verdict: Verdict, stacks: Mapping[int, str]) -> int:
    """Return the rank that others wait for: one whose own stack shows no waiting, else the one that is behind."""
    busy = [rank for rank in verdict.ranks if stacks.get(rank, "").strip() and not _waits(stacks[rank])]
    waiting = [rank for rank in verdict.ranks if _waits(stacks.get(rank, ""))]
    return busy[0] if busy and waiting else verdict.ranks[0]


def _waits(stack: str) -> bool:
    """Whether the main thread stands in a collective: its innermost frames say so."""
    main = stack.rpartition("Current thread")[2] or stack
    frames = [line for line in main.splitlines() if line.strip().startswith("File")]
    return any(word in line for line in frames[:6] for word in _WAITING)
