"""The process that writes a rank's part of every save: no torch, no threads, low priority, gone with its parent.

Started as ``python -m trireme.checkpoint.writer_process ARENA_FD PARENT_PID``. Each line of its input says where in the
arena an order lies; each line of its output is an answer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import signal
import sys
import time
from typing import Any

from trireme.checkpoint.order import ArenaPart, read_order
from trireme.checkpoint.write import Writer

_NICE = 5
_PR_SET_PDEATHSIG = 1
_ALIVE_EVERY_S = 1.0


def main() -> None:
    """Carry out orders until the parent is gone."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    # Whoever ends the run tells the rank; the rank tells its writer by closing the pipe.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    serve(descriptor, parent=parent)


def serve(descriptor: int, *, parent: int) -> None:
    """Read orders and carry them out."""
    answers = _Answers(parent)
    writer = Writer(tell=answers.tell)
    memory: mmap.mmap | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if memory is None or len(memory) != message["arena_bytes"]:
            memory = _map(descriptor, message["arena_bytes"])
        if message["size_bytes"] == 0:
            answers.tell("ready")
            continue
        order = read_order(json.loads(bytes(_view(memory, message["offset_bytes"], message["size_bytes"]))))
        answers.number = order.number
        writer.carry_out(order, _Source(memory))
        answers.tell("done")


class _Source:
    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    def __call__(self, part: ArenaPart) -> memoryview:
        return _view(self._memory, part.offset_bytes, part.size_bytes)


class _Answers:
    """Lines to the parent; that the writer is alive is said once a second at most."""

    def __init__(self, parent: int) -> None:
        self.number = 0
        self._parent = parent
        self._said_s = 0.0

    def tell(self, event: str, **values: Any) -> None:
        """Write a line."""
        if os.getppid() != self._parent:
            os._exit(0)  # where the system doesn't end a process with its parent
        if event == "alive":
            if time.monotonic() < self._said_s + _ALIVE_EVERY_S:
                return
            self._said_s = time.monotonic()
        print(json.dumps({"number": self.number, "event": event, **values}), flush=True)  # noqa: T201


def _map(descriptor: int, size_bytes: int) -> mmap.mmap:
    populate = getattr(mmap, "MAP_POPULATE", 0)
    return mmap.mmap(descriptor, size_bytes, flags=mmap.MAP_SHARED | populate, prot=mmap.PROT_READ)


def _view(memory: mmap.mmap, offset_bytes: int, size_bytes: int) -> memoryview:
    return memoryview(memory)[offset_bytes : offset_bytes + size_bytes]


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:
        os._exit(0)
