"""Faults of the storage made on purpose, for tests and drills: a writer that is slow, fails, tears, fills up or dies.

``TRIREME_WRITE_FAULT='{"kind": "fail", "times": 2}'``. A writer that dies starts anew with a clean memory, so how
often a fault strikes is counted in the file that ``marks`` names, where there is one.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

VARIABLE = "TRIREME_WRITE_FAULT"

Kind = Literal["none", "slow", "fail", "full", "torn", "die", "die_at_commit", "hang"]


@dataclass(slots=True, kw_only=True)
class WriteFault:
    """A fault.

    Attributes:
        kind: ``slow``: wait before each piece; ``fail``: an error of the storage; ``full``: no space left; ``torn``:
            write some bytes of the file, then fail; ``die``: kill -9 in the middle of a shard; ``die_at_commit``: after
            the manifest; ``hang``: stop for good, as SIGSTOP does.
        times: How often.
        seconds: How long ``slow`` waits.
        only: Files whose folder and name contain this.
        marks: File that counts, for faults that a new process must remember.
    """

    kind: Kind = "none"
    times: int = 1
    seconds: float = 0.05
    only: str = ""
    marks: str = ""
    _path: Path | None = None

    @classmethod
    def from_environ(cls) -> WriteFault:
        """Return the fault that the environment asks for, mostly none."""
        return cls(**json.loads(os.environ.get(VARIABLE) or "{}"))

    def begin(self, path: Path) -> None:
        """Hear which file is about to be written."""
        self._path = path
        if self.kind == "fail" and self._strikes():
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        if self.kind == "full" and self._strikes():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def on_piece(self, file: Any) -> None:
        """Strike in the middle of a shard."""
        if self.kind == "slow" and self._concerned():
            time.sleep(self.seconds)
        elif self.kind == "die" and self._strikes():
            file.write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.kind == "hang" and self._strikes():
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.kind == "torn" and self._strikes():
            file.write(b"half")
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path))

    def before_commit(self, folder: Path) -> None:
        """Strike when all is written and nothing has its name."""
        if self.kind == "die_at_commit" and self._strikes():
            os.kill(os.getpid(), signal.SIGKILL)

    def _concerned(self) -> bool:
        return self._path is not None and self.only in f"{self._path.parent.name}/{self._path.name}"

    def _strikes(self) -> bool:
        if not self._concerned():
            return False
        done = self._struck()
        if done >= self.times:
            return False
        if self.marks:
            Path(self.marks).write_text(str(done + 1), encoding="ascii")
        else:
            self.times -= 1
        return True

    def _struck(self) -> int:
        try:
            return int(Path(self.marks).read_text(encoding="ascii")) if self.marks else 0
        except FileNotFoundError:
            return 0
