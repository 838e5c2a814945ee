"""A launch in a process of its own, watched by the heartbeats of its ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trireme.supervise import Beat, kill_sessions, read_pulse

_LOOK_S = 0.004


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A launch that was started; its ranks' heartbeats lie below ``private``."""

    process: subprocess.Popen[bytes]
    private: Path
    output: Path

    def attempt(self) -> str:
        """Return the name of the attempt that runs now; empty between two."""
        names = [path.name for path in self.private.glob("trireme-launch-*")]
        return names[0] if len(names) == 1 else ""

    def beats(self) -> dict[int, Beat]:
        """Return the last beat of every rank of the attempt that runs now."""
        found = {}
        for path in (self.private / self.attempt()).glob("rank-*.pulse") if self.attempt() else ():
            beat = read_pulse(path)
            if beat is not None:
                found[int(path.stem.partition("-")[2])] = beat
        return found

    def server(self) -> int | None:
        """Return the process that ranks are forked from."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                return int(child.pid)
        return None

    def ranks(self) -> list[int]:
        """Return the processes of the ranks, in the order of their start."""
        import psutil

        with suppress(psutil.NoSuchProcess):
            return sorted(int(child.pid) for child in psutil.Process(self.server() or 0).children())
        return []

    def wait_until_over(self, timeout_s: float) -> int | None:
        """Return the exit code; None if it is not over in time."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def wait_for_step(self, *, not_of: str, timeout_s: float) -> bool:
        """Wait until a rank of another attempt than ``not_of`` has made a step, or the launch is over."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self.process.poll() is not None:
                return True
            name = self.attempt()
            if name and name != not_of and any(beat.phase in ("step", "saving") for beat in self.beats().values()):
                return True
            time.sleep(_LOOK_S)
        return False

    def end(self) -> None:
        """Leave nothing of it."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        sessions = [pid for pid in (self.server(), *self.ranks()) if pid is not None]
        kill_sessions(sessions)


def start_launch(
    words: Sequence[str], *, folder: Path, name: str = "launch", environ: Mapping[str, str] | None = None
) -> Launched:
    """Start ``trireme launch WORDS`` in ``folder`` and return at once; what it says goes to ``name.out`` there."""
    private = folder / f"{name}.private"
    private.mkdir(parents=True, exist_ok=True)
    output = folder / f"{name}.out"
    with open(output, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "trireme", "launch", *words],
            cwd=folder,
            env={**os.environ, **(environ or {}), "TMPDIR": str(private)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Launched(process=process, private=private, output=output)
