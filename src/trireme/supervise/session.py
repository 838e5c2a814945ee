"""All processes of a rank: it leads a session, and whatever it starts stays in it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable

_LOOK_S = 0.02


def members(session: int) -> list[int]:
    """Return the processes of a session, its leader included while it is there."""
    import psutil

    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == session:
                found.append(pid)
    return found


def kill_sessions(sessions: Iterable[int], *, timeout_s: float = 5.0) -> list[int]:
    """Kill everything in the sessions and return what is left after ``timeout_s``: mostly nothing.

    A process may start another while it is being killed, so it is looked again until there is none.
    """
    wanted = list(sessions)
    deadline_s = time.monotonic() + timeout_s
    while True:
        left = [pid for session in wanted for pid in members(session) if not _is_zombie(pid)]
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(_LOOK_S)


def process_state(pid: int) -> str:
    """Return the kernel's letter for a process's state (``T``: stopped); empty if unknown."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _is_zombie(pid: int) -> bool:
    return process_state(pid) == "Z"
