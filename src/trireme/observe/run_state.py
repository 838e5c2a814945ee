"""``run.json``: the mark that says a folder holds a Trireme run, and how far it came."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from trireme import __version__
from trireme.observe.atomic import write_atomic
from trireme.observe.lock import holder_pid
from trireme.observe.strict_json import to_text

STATE_NAME = "run.json"
LOCK_NAME = "run.lock"
FORMAT = 1

Status = Literal["running", "finished", "stopped", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How far a run came. ``interrupted``: it was running, and its process is gone."""

    run_id: str
    status: Status
    step: int = 0
    max_steps: int = 0
    created: str = ""
    updated: str = ""
    attempts: int = 1
    trireme: str = __version__
    format: int = FORMAT

    @property
    def is_finished(self) -> bool:
        """Whether the run reached its last step."""
        return self.status == "finished"


def new_state() -> RunState:
    """Return the state of a run that begins now."""
    return RunState(run_id=uuid.uuid4().hex[:12], status="running", created=_now(), updated=_now())


def load_state(folder: Path) -> RunState | None:
    """Return what ``run.json`` says, as written; None if there is none."""
    try:
        values = json.loads((folder / STATE_NAME).read_text(encoding="utf-8"))
        return RunState(**{field.name: values[field.name] for field in fields(RunState) if field.name in values})
    except (OSError, ValueError, TypeError):
        return None


def read_state(folder: Path) -> RunState | None:
    """Return the state of the run in ``folder`` as it is now; None if there is none."""
    state = load_state(folder)
    if state is not None and state.status == "running" and holder_pid(folder / LOCK_NAME) is None:
        return replace(state, status="interrupted")
    return state


def write_state(folder: Path, state: RunState) -> RunState:
    """Write ``state`` and return it with the time it was written."""
    state = replace(state, updated=_now())
    write_atomic(folder / STATE_NAME, to_text(asdict(state)))
    return state


def find_runs(root: Path) -> list[Path]:
    """Return the run folders directly below ``root``, newest first."""
    try:
        marks = list(root.glob(f"*/{STATE_NAME}"))
    except OSError:
        return []
    return [mark.parent for mark in sorted(marks, key=lambda mark: mark.stat().st_mtime, reverse=True)]


def suggest_runs(path: Path, *, limit: int = 3) -> list[Path]:
    """Return runs that ``path`` may have meant: near names first, else the newest ones beside it."""
    runs = find_runs(path.parent) or find_runs(Path("runs"))
    by_name = {run.name: run for run in runs}
    near = get_close_matches(path.name, by_name, n=limit, cutoff=0.6)
    return [by_name[name] for name in near] or runs[:limit]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
