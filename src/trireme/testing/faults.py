"""Runs that a test starts in a process of their own, watches by their log, and kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What a run left behind when it ended by itself."""

    exit_code: int
    output: str
    errors: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartedRun:
    """A run in a process group of its own."""

    process: subprocess.Popen[str]

    def kill_at_step(self, log: Path, step: int, *, timeout_s: float = 120.0) -> int:
        """Kill the run, as kill -9 does, once its JSONL log holds ``step``; return the last step logged."""
        wait_for_step(log, step, run=self, timeout_s=timeout_s)
        self.kill()
        return last_step(log)

    def kill(self) -> None:
        """End the run and everything it started, without a word to it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def finish(self, *, timeout_s: float = 120.0) -> FinishedRun:
        """Wait for the end; a run that takes longer than ``timeout_s`` is killed and that is an error."""
        try:
            output, errors = self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return FinishedRun(exit_code=self.process.returncode, output=output, errors=errors)


def start_run(
    arguments: Sequence[str], *, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> StartedRun:
    """Start ``trireme <arguments>`` and return at once.

    Args:
        arguments: What one would type after ``trireme``.
        folder: Where to start it.
        environ: Variables on top of this process's.
    """
    program = Path(sys.executable).with_name("trireme")
    process = subprocess.Popen(
        [str(program), *arguments],
        cwd=folder,
        env={**os.environ, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return StartedRun(process=process)


def wait_for_step(log: Path, step: int, *, run: StartedRun, timeout_s: float = 120.0) -> None:
    """Wait until a JSONL log holds ``step`` or a later one.

    Raises:
        AssertionError: The run ended before it, or it takes longer than ``timeout_s``.
    """
    deadline_s = time.monotonic() + timeout_s
    while last_step(log) < step:
        if run.process.poll() is not None:
            output, errors = run.process.communicate()
            raise AssertionError(f"the run ended at step {last_step(log)} of {step}:\n{output}\n{errors}")
        if time.monotonic() > deadline_s:
            run.kill()
            raise AssertionError(f"no step {step} within {timeout_s:g} s, only {last_step(log)}")
        time.sleep(_POLL_S)


def read_log(log: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a JSONL log; a line that a kill cut off is left out."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def last_step(log: Path) -> int:
    """Return the highest step of a JSONL log, -1 while there is none."""
    return max((int(entry["step"]) for entry in read_log(log) if "step" in entry), default=-1)
