"""Why a rank failed: what it writes down itself before it dies, and what its end tells where it can't."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from trireme.errors import TriremeError
from trireme.supervise.pulse import own_step
from trireme.words import say

RECORD_VARIABLE = "TRIREME_FAILURE_RECORD"
"""Names the file into which a rank writes why it fails."""

Kind = Literal[
    "user", "memory", "disk", "diverged", "corrupt", "worker", "crash", "exit", "killed", "hang", "init", "lost"
]
KINDS: tuple[Kind, ...] = get_args(Kind)

OF_RANK: frozenset[Kind] = frozenset({"crash", "exit", "killed", "hang", "corrupt", "worker"})
"""Kinds that speak against the rank, or the node it runs on."""

_KIND_OF: dict[str, Kind] = {
    "train.out_of_memory": "memory",
    "cli.no_memory": "memory",
    "train.nonfinite_stop": "diverged",
    "train.nonfinite_row": "diverged",
    "train.spike_stop": "diverged",
    "train.rollback": "diverged",
    "job.rollbacks_spent": "diverged",
    "train.replica_differs": "corrupt",
    "sample.worker_died": "worker",
    "mesh.no_group": "init",
    "checkpoint.no_space": "disk",
    "checkpoint.space_ran_out": "disk",
}
_LOST_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_LOST_WORDS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "gloo/transport", "Timed out")
_TRACEBACK_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One rank's end.

    Attributes:
        rank: Which; None where it was no rank, but what starts them.
        kind: What it was, as the policy sees it.
        message: One line for a person.
        step: Steps it had done.
        at_s: When, seconds since the epoch.
        exit_code: As a shell would see it.
        traceback: The last lines of it; empty where there is none.
        host: Which machine.
    """

    rank: int | None
    kind: Kind
    message: str
    step: int
    at_s: float
    exit_code: int = 1
    traceback: str = ""
    host: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Failure:
        """Read it back."""
        return cls(**fields)


def kind_of(error: BaseException) -> Kind:
    """Say what an error is to the policy."""
    if isinstance(error, TriremeError):
        if error.said_elsewhere:
            return "lost"
        return _KIND_OF.get(error.key, "user" if error.exit_code == 2 else "crash")
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "memory"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk"
    if is_lost_connection(error):
        return "lost"
    return "crash"


def is_lost_connection(error: BaseException) -> bool:
    """Whether another rank's end broke off a collective."""
    if type(error).__name__ in _LOST_TYPES:
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST_WORDS)


def record_failure(error: BaseException, *, exit_code: int) -> None:
    """Write down why this rank fails, where somebody wants to know; the first reason stays."""
    path = os.environ.get(RECORD_VARIABLE)
    if not path or os.path.exists(path):
        return
    first_line = (str(error).splitlines() or [""])[0]
    lines = [] if isinstance(error, TriremeError) else traceback.format_exception(error)
    text = "".join(lines).splitlines()[-_TRACEBACK_LINES:]
    failure = Failure(
        rank=_rank_at_fault(error),
        kind=kind_of(error),
        message=first_line if isinstance(error, TriremeError) else f"{type(error).__name__}: {first_line}",
        step=own_step(),
        at_s=time.time(),
        exit_code=exit_code,
        traceback="\n".join(text),
    )
    part = f"{path}.part"
    Path(part).write_text(json.dumps(failure.to_json(), ensure_ascii=False), encoding="utf-8")
    os.replace(part, path)


def _rank_at_fault(error: BaseException) -> int:
    """Return the rank that the error names, if it names one alone; else this one."""
    named = str(error.values.get("ranks", "")) if isinstance(error, TriremeError) else ""
    return int(named if named.isdigit() else os.environ.get("RANK", "0") or 0)


def read_failure(path: Path) -> Failure | None:
    """Return what a rank wrote down, if it did."""
    try:
        return Failure.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def failure_of_end(*, rank: int, status: int, at_s: float, step: int, record: Failure | None) -> Failure | None:
    """Say how a rank failed from the status ``os.waitpid`` gave and from its own record; None if it did not."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return None
    if code < 0:
        name = signal.Signals(-code).name
        key = "launch.killed_9" if -code == signal.SIGKILL else "launch.killed"
        message = say(key, number=-code, name=name)
        return Failure(rank=rank, kind="killed", message=message, step=step, at_s=at_s, exit_code=128 - code)
    if record is not None:
        return replace(record, exit_code=code)
    kind: Kind = "user" if code == 2 else "exit"
    message = say("launch.exited", code=code)
    return Failure(rank=rank, kind=kind, message=message, step=step, at_s=at_s, exit_code=code)


def first_cause(failures: list[Failure]) -> Failure:
    """Return the failure that the others follow from: the earliest that is no broken connection."""
    causes = [failure for failure in failures if failure.kind != "lost"] or failures
    return min(causes, key=lambda failure: failure.at_s)
