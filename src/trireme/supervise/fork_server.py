"""The warm process that ranks are forked from: it imports once what every rank needs, and then only waits.

It has one thread and computes nothing, so forking is safe, and a restart costs no import. It reaps the ranks and
tells how each ended; when the supervisor is gone, it ends them and itself.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from trireme.supervise.entry import RankOrder, leave_parent, run_forked, to_words
from trireme.supervise.session import kill_sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class Preload:
    """What to import before the first rank."""

    modules: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskFlight:
    """Have every rank write its flight record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A rank is there."""

    rank: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A rank is gone; ``status`` as ``os.waitpid`` gives it, ``at_s`` since the epoch."""

    pid: int
    status: int
    at_s: float


class _Server:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._lines: dict[int, int] = {}

    def serve(self) -> None:
        """Answer until the supervisor's end closes."""
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._ringer.fileno(), warn_on_full_buffer=False)
        while True:
            for ready in wait([self._connection, self._bell]):
                if ready is self._bell:
                    self._bell.recv(4096)
                    self._reap()
                elif not self._answer():
                    kill_sessions(list(self._lines))
                    return

    def _answer(self) -> bool:
        """Do one thing that is asked; returns whether the supervisor is still there."""
        try:
            asked: Any = self._connection.recv()
        except (EOFError, OSError):
            return False
        if isinstance(asked, Preload):
            for module in asked.modules:
                importlib.import_module(module)
            import gc

            gc.collect()
            gc.freeze()  # pages that are never collected stay shared with the ranks
        elif isinstance(asked, RankOrder):
            self._start(asked)
        elif isinstance(asked, AskFlight):
            for line in self._lines.values():
                _write(line, b"f")
        return True

    def _start(self, order: RankOrder) -> None:
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            self._become(order, theirs=theirs, ours=ours)
        os.close(theirs)
        self._lines[pid] = ours
        self._send(Started(rank=order.rank, pid=pid))

    def _become(self, order: RankOrder, *, theirs: int, ours: int) -> None:
        """Leave the server behind and be the rank; never returns."""
        code = 1
        try:
            leave_parent(order)
            for fd in (ours, *self._lines.values(), self._connection.fileno(), self._bell.fileno()):
                os.close(fd)
            os.close(self._ringer.fileno())
            if not order.warm:
                os.set_inheritable(theirs, True)
                words = to_words(order, line=theirs)
                os.execve(words[0], words, order.environ)
            code = run_forked(order, line=theirs)
        except BaseException as error:  # the server's frames above must not see it
            sys.excepthook(type(error), error, error.__traceback__)
        finally:
            os._exit(code)

    def _reap(self) -> None:
        while self._lines:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            line = self._lines.pop(pid, None)
            if line is not None:
                os.close(line)
                self._send(Ended(pid=pid, status=status, at_s=time.time()))

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError:
            return  # the supervisor is gone; the next look at its connection says so


def _write(line: int, word: bytes) -> None:
    try:
        os.write(line, word)
    except OSError:
        return


def main() -> None:
    """Serve on the file descriptor that is named on the command line."""
    # Ctrl-C at a terminal goes to all: the supervisor alone decides what becomes of the ranks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _Server(Connection(int(sys.argv[1]))).serve()
