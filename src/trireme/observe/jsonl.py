"""A log of JSON lines that one process appends to: whole lines only, through full disks and kills."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trireme.errors import TrainError
from trireme.observe.report import Event
from trireme.observe.strict_json import from_line, to_line
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCut:
    """What cutting a log back to a step did: lines kept, lines dropped, steps that have no line."""

    kept: int
    dropped: int
    missing: int


class JsonlLog:
    """Appends one object a line.

    A line is handed to the kernel in full before ``write`` returns, so killing the process loses none.
    When a write fails (a full disk), the half-written line is taken back, the lines wait in memory, one
    event says so, and each later write tries again; the run stops when ``max_waiting`` lines wait.
    """

    def __init__(self, path: Path, *, notice: Callable[[Event], None], max_waiting: int = 1000) -> None:
        self.path = path
        self._notice = notice
        self._max_waiting = max_waiting
        self._waiting: list[bytes] = []
        self._in_trouble = False
        self._fd = _open_log(path)
        self._good_bytes = os.fstat(self._fd).st_size

    def write(self, fields: Mapping[str, Any]) -> None:
        """Append one object.

        Raises:
            TrainError: Too many lines wait for a disk that does not take them.
        """
        self._waiting.append(to_line(fields).encode("utf-8"))
        error = self._flush()
        if error and len(self._waiting) >= self._max_waiting:
            raise TrainError("observe.log_lost", path=self.path, count=len(self._waiting), reason=error.strerror)

    def sync(self) -> None:
        """Force what was written to the disk: before a checkpoint that counts on these lines."""
        self._flush()
        with contextlib.suppress(OSError):
            os.fsync(self._fd)

    def close(self) -> None:
        """Write what waits and close.

        Raises:
            TrainError: Lines that still can't be written are lost now; says how many.
        """
        if self._fd < 0:
            return
        error = self._flush()
        os.close(self._fd)
        self._fd = -1
        if error:
            raise TrainError("observe.log_lost", path=self.path, count=len(self._waiting), reason=error.strerror)

    def _flush(self) -> OSError | None:
        if not self._waiting:
            return None
        data = b"".join(self._waiting)
        try:
            _write_all(self._fd, data)
        except OSError as error:
            os.ftruncate(self._fd, self._good_bytes)
            self._report_trouble(error)
            return error
        self._good_bytes += len(data)
        self._waiting.clear()
        self._report_recovery()
        return None

    def _report_trouble(self, error: OSError) -> None:
        if self._in_trouble:
            return
        self._in_trouble = True
        text = say("observe.log_waits", path=self.path, reason=error.strerror, count=self._max_waiting)
        self._notice(Event(kind="log_write", level="warning", text=text, data={"path": str(self.path)}))

    def _report_recovery(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            self._notice(Event(kind="log_write", text=say("observe.log_recovered", path=self.path)))


def cut_log(path: Path, *, last_step: int) -> LogCut:
    """Cut a log behind ``last_step``; a last line torn by a kill goes with it.

    The cut is one truncation of the file, so it is done or not done, and needs no free space.

    Raises:
        TrainError: A whole line is not a JSON object with a step: the file was damaged or is not ours.
    """
    if not path.exists():
        return LogCut(kept=0, dropped=0, missing=last_step)
    kept, dropped, good_bytes = 0, 0, 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if dropped or not line.endswith(b"\n") or _step_of(line, path=path, number=number) > last_step:
                dropped += 1
            else:
                kept, good_bytes = kept + 1, good_bytes + len(line)
    if dropped:
        os.truncate(path, good_bytes)
    return LogCut(kept=kept, dropped=dropped, missing=max(0, last_step - kept))


def _step_of(line: bytes, *, path: Path, number: int) -> int:
    try:
        return int(from_line(line)["step"])
    except (ValueError, KeyError, TypeError) as error:
        raise TrainError("observe.log_damaged", path=path, line=number) from error


def _open_log(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise TrainError("observe.cannot_write", path=path, reason=error.strerror or error) from error
    _drop_torn_line(fd)
    return fd


def _drop_torn_line(fd: int, *, block_bytes: int = 1 << 16) -> None:
    """Take back a last line without its newline, so that the next line begins on its own."""
    end = os.fstat(fd).st_size
    while end > 0:
        start = max(0, end - block_bytes)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            return os.ftruncate(fd, start + newline + 1)
        end = start
    return os.ftruncate(fd, 0)


def _write_all(fd: int, data: bytes) -> None:
    """A short write is not an error by itself; the write that follows tells."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
