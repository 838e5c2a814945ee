"""Steps whose samples a rollback leaves out: noted in the run folder before the run goes back, then in checkpoints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trireme.config import TrainSection
from trireme.errors import Rollback, TrainError
from trireme.observe import write_atomic
from trireme.words import say

_NAME = "left_out.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Which steps, counted from zero, and how often the run went back."""

    steps: frozenset[int] = frozenset()
    rollbacks: int = 0


def read_left_out(folder: Path) -> LeftOut:
    """Return what a run leaves out; nothing where it never went back."""
    path = folder / _NAME
    if not path.exists():
        return LeftOut()
    fields = json.loads(path.read_text(encoding="utf-8"))
    return LeftOut(steps=frozenset(fields["steps"]), rollbacks=fields["rollbacks"])


def leave_out(error: Rollback, *, folder: Path, section: TrainSection) -> str:
    """Note the step that asks for a rollback, and those before it that are to go as well; returns a line about it.

    Raises:
        TrainError: The run went back often enough.
    """
    known = read_left_out(folder)
    if known.rollbacks >= section.max_rollbacks:
        raise TrainError("job.rollbacks_spent", count=known.rollbacks, reason=error) from error
    last = int(str(error.values["step"])) - 1
    first = max(0, last + 1 - section.rollback_leave_out_steps)
    steps = known.steps | set(range(first, last + 1))
    fields = {"steps": sorted(steps), "rollbacks": known.rollbacks + 1}
    write_atomic(folder / _NAME, json.dumps(fields) + "\n")
    left = section.max_rollbacks - known.rollbacks - 1
    return say("job.rolling_back", reason=error, first=first + 1, last=last + 1, left=left)
