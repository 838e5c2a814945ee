"""The folder of one run: who may open it, where things are in it, and what must never be lost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from trireme.errors import TrainError
from trireme.observe.atomic import write_atomic
from trireme.observe.jsonl import LogCut, cut_log
from trireme.observe.lock import FolderLock
from trireme.observe.run_state import (
    LOCK_NAME,
    RunState,
    Status,
    load_state,
    new_state,
    read_state,
    write_state,
)
from trireme.observe.sample_book import write_book
from trireme.observe.strict_json import to_text

_DECISIONS_NAME = "decisions.json"
FAILURES_NAME = "failures"
"""What a supervisor keeps of attempts that failed, perhaps before there was a run: no run begins by deleting it."""

_REPLACED = ".replaced-"
_OURS = (
    "config.yaml",
    "config_origins.json",
    "environment.json",
    _DECISIONS_NAME,
    "log.jsonl",
    "evals.jsonl",
    "events.jsonl",
    "samples.jsonl",
    "samples.md",
    "data_report.json",
    "summary.json",
    "loss.png",
    "checkpoints",
    "tokenizer",
    "left_out.json",
)
"""What a run makes, but for ``run.json``: it says that the folder holds a run, and is written over at once."""


class RunFolder:
    """An open run folder; this process is its only writer until ``close``.

    Made by ``open_fresh`` or ``open_resume``. As a context manager it also records how the run ended,
    unless ``mark`` already did: an error is ``failed``, Ctrl-C is ``stopped``.

    A folder that holds a run stays as it is until ``begin``, so that whatever is refused before costs nothing.
    """

    def __init__(self, path: Path, *, lock: FolderLock, state: RunState, holds: Literal["", "old", "own"] = "") -> None:
        self.path = path
        self.state = state
        self._lock = lock
        self._holds = holds
        self._decisions: dict[str, Any] = {}

    @classmethod
    def open_fresh(cls, path: Path, *, overwrite: bool = False) -> Self:
        """Open ``path`` for a run that begins at step 0.

        A folder of a run that never made a step is taken over. With ``overwrite`` an older run's own files
        go at ``begin``; files that Trireme did not write stay where they are.

        Raises:
            TrainError: It holds a run, or something that is none, or another process writes to it, or it
                can't be written.
        """
        _refuse_foreign(path)
        lock = _lock(path)
        try:
            folder = cls(path, lock=lock, state=new_state(), holds=_older_run(path, overwrite=overwrite))
            if not folder._holds:
                folder._take_over()
        except BaseException:
            lock.release()
            raise
        return folder

    @classmethod
    def open_resume(cls, path: Path) -> Self:
        """Open ``path`` to go on with the run in it, finished or not (see ``state``).

        Raises:
            TrainError: There is no run in it, another process writes to it, or it can't be written.
        """
        if load_state(path) is None:
            raise TrainError("observe.nothing_to_resume", path=path)
        lock = _lock(path)
        state = load_state(path)
        assert state is not None, "checked above; only the holder of the lock removes it"
        if state.status == "running":  # nobody holds the lock, so whoever wrote this is gone
            state = replace(state, status="interrupted")
        return cls(path, lock=lock, state=state, holds="own")

    @property
    def config_path(self) -> Path:
        """The resolved settings."""
        return self.path / "config.yaml"

    @property
    def log_path(self) -> Path:
        """One object a step."""
        return self.path / "log.jsonl"

    @property
    def evals_path(self) -> Path:
        """One object an evaluation."""
        return self.path / "evals.jsonl"

    @property
    def events_path(self) -> Path:
        """One object an event, of all attempts."""
        return self.path / "events.jsonl"

    @property
    def samples_path(self) -> Path:
        """One object a sample."""
        return self.path / "samples.jsonl"

    @property
    def plot_path(self) -> Path:
        """The loss as a picture."""
        return self.path / "loss.png"

    @property
    def checkpoint_dir(self) -> Path:
        """Parent of ``step-N``."""
        return self.path / "checkpoints"

    @property
    def tokenizer_dir(self) -> Path:
        """The tokenizer, so that a run folder can be used alone."""
        return self.path / "tokenizer"

    def mark(self, *, status: Status | None = None, step: int | None = None, max_steps: int | None = None) -> None:
        """Record how far the run came; call it at the start, with each checkpoint and at the end."""
        changes = {"status": status, "step": step, "max_steps": max_steps}
        kept = {name: value for name, value in changes.items() if value is not None}
        self.state = write_state(self.path, replace(self.state, **kept))  # type: ignore[arg-type]

    def begin(self) -> None:
        """Make the folder this attempt's, now that nothing can refuse it: an older run goes, its own goes on."""
        if self._holds == "old":
            self._take_over()
        elif self._holds == "own":
            self.state = replace(self.state, attempts=self.state.attempts + 1)
            self.mark(status="running")
        self._holds = ""
        if self._decisions:
            write_atomic(self.path / _DECISIONS_NAME, to_text(_read_decisions(self.path) | self._decisions))

    def decide(self, name: str, compute: Callable[[], Any]) -> Any:
        """Return what was decided on this machine as ``name``; ``compute`` it the first time and keep it.

        The answer is JSON and comes back as JSON reads it, the first time too.
        """
        decisions = {} if self._holds == "old" else _read_decisions(self.path)
        if name not in decisions | self._decisions:
            self._decisions[name] = json.loads(to_text(compute()))
            if not self._holds:
                write_atomic(self.path / _DECISIONS_NAME, to_text(decisions | self._decisions))
        return (decisions | self._decisions)[name]

    def write_text(self, name: str, text: str) -> Path:
        """Put a text file into the folder, whole or not at all."""
        write_atomic(self.path / name, text)
        return self.path / name

    def write_json(self, name: str, value: Any) -> Path:
        """Put a JSON file into the folder, whole or not at all."""
        return self.write_text(name, to_text(value))

    def truncate_log(self, step: int) -> LogCut:
        """Cut steps, evaluations and samples behind ``step``; events of the past stay. Tells about the steps."""
        cut_log(self.evals_path, last_step=step)
        cut_log(self.samples_path, last_step=step)
        write_book(self.path)
        return cut_log(self.log_path, last_step=step)

    def _take_over(self) -> None:
        self.state = _replace_run(self.path, self.state)

    def close(self) -> None:
        """Let others open the folder."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        try:
            if kind is not None and self.state.status == "running" and not self._holds:
                self.mark(status="stopped" if issubclass(kind, KeyboardInterrupt) else "failed")
        finally:
            self.close()


def _refuse_foreign(path: Path) -> None:
    """Before anything is written, not even a lock: is this a folder we may touch?"""
    if path.exists() and not path.is_dir():
        raise TrainError("observe.not_a_folder", path=path)
    try:
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    except OSError as error:
        raise TrainError("observe.cannot_write", path=path, reason=error.strerror or error) from error
    if names - {LOCK_NAME, FAILURES_NAME} and read_state(path) is None:
        raise TrainError("observe.foreign_folder", path=path)


def _lock(path: Path) -> FolderLock:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrainError("observe.cannot_write", path=path, reason=error.strerror or error) from error
    return FolderLock(path / LOCK_NAME)


def _older_run(path: Path, *, overwrite: bool) -> Literal["", "old"]:
    """Say whether the folder holds a run that would be lost, and refuse unless that is wanted."""
    _refuse_foreign(path)  # again, now that nobody else can put something there
    state = read_state(path)
    if state is None or _is_blank(path):
        return ""
    if not overwrite:
        key = "observe.run_finished" if state.is_finished else "observe.run_exists"
        raise TrainError(key, path=path, step=state.step, max_steps=state.max_steps)
    return "old"


def _is_blank(path: Path) -> bool:
    """Whether the run in it never made a step, so that nothing is lost with it."""
    log, checkpoints = path / "log.jsonl", path / "checkpoints"
    has_steps = log.exists() and log.stat().st_size > 0
    return not has_steps and not (checkpoints.is_dir() and any(checkpoints.iterdir()))


def _replace_run(path: Path, state: RunState) -> RunState:
    """Put a new run in the place of an older one; a kill at any moment leaves a folder known as a run.

    Our files move aside first, each in one rename, so that no half-deleted checkpoint looks like one.
    """
    aside = path / f"{_REPLACED}{os.getpid()}"
    try:
        for name in _OURS:
            if os.path.lexists(path / name):
                aside.mkdir(exist_ok=True)
                os.rename(path / name, aside / name)
        state = write_state(path, state)
        for leftover in path.glob(f"{_REPLACED}*"):
            shutil.rmtree(leftover)
        return state
    except OSError as error:
        raise TrainError("observe.cannot_write", path=path, reason=error.strerror or error) from error


def _read_decisions(folder: Path) -> dict[str, Any]:
    path = folder / _DECISIONS_NAME
    if not path.exists():
        return {}
    try:
        decisions: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TrainError("observe.decisions_damaged", path=path) from error
    return decisions
