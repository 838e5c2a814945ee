"""The supervisor's side of the fork server: start ranks, hear how they end, end them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from trireme.supervise.entry import STACK_SIGNAL, RankOrder
from trireme.supervise.fork_server import AskFlight, Ended, Preload, Started
from trireme.supervise.session import kill_sessions, process_state

_STARTED_S = 2.0
"""How long ranks that were asked for may take to be there, before the server is ended to be sure of them."""

_BOOT = "from trireme.supervise.fork_server import main; main()"
_AWAKE_S = 0.05
"""How long a stopped rank is woken to write its stack: enough for that, and too little to go on with its work."""


class Starter:
    """Starts ranks from one warm process, which is started again when it is gone.

    Args:
        modules: What the warm process imports before the first rank; none for ranks with interpreters of their own.
        environ: Of the warm process: what a library reads while it loads must stand there already.
    """

    def __init__(self, *, modules: tuple[str, ...], environ: dict[str, str]) -> None:
        self._modules = modules
        self._environ = environ
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self.pids: dict[int, int] = {}
        """Process id by rank, of ranks that were started and not cleared away."""
        self._asked = 0

    def warm_up(self) -> None:
        """Have the process there, importing."""
        if self._process is not None and self._process.poll() is None:
            return
        self._drop()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _BOOT, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=self._environ,
                process_group=0,
            )
        self._connection = Connection(ours.detach())
        self._connection.send(Preload(modules=self._modules))

    @property
    def server_pid(self) -> int | None:
        """The warm process."""
        return None if self._process is None else self._process.pid

    def start(self, orders: list[RankOrder]) -> None:
        """Start ranks; ``poll`` tells their process ids and ends."""
        self.warm_up()
        assert self._connection is not None
        self._asked = len(orders)
        with suppress(OSError):  # a server that died just now is noticed by ``poll``
            for order in orders:
                self._connection.send(order)

    def poll(self, timeout_s: float) -> tuple[list[Ended], bool]:
        """Return ranks that ended, and whether the server is still there."""
        ended: list[Ended] = []
        assert self._connection is not None
        try:
            while self._connection.poll(0.0 if ended else timeout_s):
                told: Any = self._connection.recv()
                if isinstance(told, Started):
                    self.pids[told.rank] = told.pid
                else:
                    ended.append(told)
        except (EOFError, OSError):
            return ended, False
        return ended, True

    def send_signal(self, number: int, *, ranks: set[int] | None = None) -> None:
        """Send a signal to ranks that are there."""
        for rank, pid in self.pids.items():
            if ranks is None or rank in ranks:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def ask_stacks(self, ranks: set[int]) -> None:
        """Have ranks write their stacks and flight records; a stopped one is woken for it."""
        with suppress(OSError):
            if self._connection is not None:
                self._connection.send(AskFlight())
        self.send_signal(STACK_SIGNAL, ranks=ranks)
        stopped = {rank for rank in ranks if rank in self.pids and process_state(self.pids[rank]) in ("T", "t")}
        if stopped:
            self.send_signal(signal.SIGCONT, ranks=stopped)
            time.sleep(_AWAKE_S)
            self.send_signal(signal.SIGSTOP, ranks=stopped)

    def clear(self) -> list[int]:
        """Kill every rank with all it started; returns what could not be killed."""
        deadline_s = time.monotonic() + _STARTED_S
        while len(self.pids) < self._asked and time.monotonic() < deadline_s and self.poll(0.05)[1]:
            pass
        if len(self.pids) < self._asked and self._process is not None:
            self._process.kill()  # ranks die with their server, those that nobody has heard of as well
            self._drop()
        self._asked = 0
        left = kill_sessions(self.pids.values())
        self.pids.clear()
        return left

    def close(self) -> None:
        """End everything."""
        self.clear()
        self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
