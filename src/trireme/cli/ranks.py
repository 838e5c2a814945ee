"""Starting a command on several ranks of this machine: the short form of ``trireme launch``."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

import click

from trireme.words import say

_GRACE_S = 10.0
"""How long ranks may take to end by themselves after one failed or a signal came."""

_LOOK_S = 0.05


def run_ranks(words: Sequence[str], *, num_ranks: int) -> int:
    """Run ``trireme WORDS`` once per rank and return the exit code: that of the first rank that failed, else 0.

    When one fails, the others are told to end and after a while made to. Signals are passed on.
    """
    ranks = [_start(words, environ) for environ in _environments(num_ranks)]
    signals = _pass_on_signals(ranks)
    try:
        return _wait(ranks)
    finally:
        for number, handler in signals.items():
            signal.signal(number, handler)
        _end(ranks)


def _environments(num_ranks: int) -> list[dict[str, str]]:
    """Give each rank's environment; threads are shared out unless someone has decided on them."""
    shared = {
        "WORLD_SIZE": num_ranks,
        "LOCAL_WORLD_SIZE": num_ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": _port(),
    }
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    environ = {"OMP_NUM_THREADS": str(max(1, cores // num_ranks)), **os.environ}
    if sys.platform == "linux":
        # Ranks of one machine need no name lookup to find each other, and it can be slow.
        environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return [
        {**environ, **{name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}}
        for rank in range(num_ranks)
    ]


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _start(words: Sequence[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "trireme", *words], env=environ)


def _pass_on_signals(ranks: Sequence[subprocess.Popen[bytes]]) -> dict[int, Any]:
    """Send SIGTERM on; a terminal sends Ctrl-C to all by itself, so that one is only not to end the starter."""

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for rank in ranks:
            if rank.poll() is None and number != signal.SIGINT:
                rank.send_signal(number)

    return {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}


def _wait(ranks: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return when all have ended, or one has failed."""
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = {rank: code for rank, code in enumerate(codes) if code}
        if failed:
            # Ranks that hear of a broken connection may end before anyone looks again: the killed one is the cause.
            rank, code = min(failed.items(), key=lambda each: (each[1] > 0, each[0]))
            _tell_signal(rank, code)
            return _exit_code(code)
        if None not in codes:
            return 0
        time.sleep(_LOOK_S)


def _tell_signal(rank: int, code: int) -> None:
    """A rank that a signal ended can't say so itself."""
    if code < 0 and -code not in (signal.SIGTERM, signal.SIGINT):
        click.echo(say("ranks.killed", rank=rank, signal=signal.Signals(-code).name), err=True)


def _exit_code(code: int) -> int:
    """A process ended by a signal has a negative code; a shell says 128 + its number."""
    return 128 - code if code < 0 else code


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    deadline_s = time.monotonic() + _GRACE_S
    asked = False
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline_s:
        if not asked and time.monotonic() > deadline_s - _GRACE_S + 1.0:
            asked = True  # a second to end by themselves: most hear of the failure as a broken connection
            for rank in ranks:
                if rank.poll() is None:
                    rank.terminate()
        time.sleep(_LOOK_S)
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
        rank.wait()
