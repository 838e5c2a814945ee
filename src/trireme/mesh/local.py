"""Run a function on several ranks of this machine, each a process forked from a warm server.

The server only ever imports, so no thread pool is alive when it forks: forking from a process
that has used two OpenMP threads can hang. Ranks meet in a file, so runs never fight over a port.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from trireme.mesh.rank_process import STACK_SIGNAL, RankReport, RankTask, enter_rank
from trireme.words import say

_PRELOAD = ["trireme.mesh.preload"]

_GRACE_S = 0.5
"""After one rank fails, how long the others may still report why they failed."""

_STACK_S = 1.0
"""How long a hung rank may take to write its stack before it is killed."""

_T = TypeVar("_T")


class RankError(AssertionError):
    """At least one rank failed; the message holds every traceback, earliest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """A started rank as its starter sees it."""

    rank: int
    process: BaseProcess
    pipe: Connection
    stack_path: Path


def run_on_ranks(body: Callable[..., _T], num_ranks: int, *, timeout_s: float = 60.0, **arguments: Any) -> list[_T]:
    """Call ``body(**arguments)`` on every rank and return what each returned, by rank.

    The group is gloo and initialised; RANK, LOCAL_RANK and WORLD_SIZE are set; torch has one thread.

    Args:
        body: A module-level function; it is found by name in the rank, not pickled.
        num_ranks: World size.
        timeout_s: Wall-clock limit for the slowest rank, seconds.
        arguments: Passed to every rank; must pickle, as must what ``body`` returns.

    Raises:
        RankError: A rank raised, died or was still running at the limit.
    """
    with tempfile.TemporaryDirectory(prefix="trireme-ranks-") as folder:
        ranks: list[_Rank] = []
        try:
            for rank in range(num_ranks):
                ranks.append(_start(body, rank, num_ranks, Path(folder), timeout_s, arguments))
            reports = _collect(ranks, timeout_s)
        except BaseException:
            _kill(ranks)
            raise
        finally:
            _end(ranks)
    return [reports[rank].payload for rank in range(num_ranks)]


def preload_on_ranks(*modules: str) -> None:
    """Have the server import these too, once for all ranks; without effect if it runs already.

    They must only define things: a module that starts threads would make forking unsafe.
    """
    _PRELOAD.extend(module for module in modules if module not in _PRELOAD)


def _processes() -> ForkServerContext:
    # The server belongs to the whole program: it is told what to import only once ranks are wanted.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


def _start(
    body: Callable[..., Any], rank: int, num_ranks: int, folder: Path, timeout_s: float, arguments: dict[str, Any]
) -> _Rank:
    processes = _processes()
    ours, theirs = processes.Pipe(duplex=False)
    task = RankTask(
        module=body.__module__,
        qualname=body.__qualname__,
        rank=rank,
        num_ranks=num_ranks,
        store_path=folder / "store",
        stack_path=folder / f"stack-{rank}",
        timeout_s=timeout_s,
    )
    process = processes.Process(target=enter_rank, args=(task, theirs, arguments), name=f"rank {rank}")
    process.start()
    theirs.close()
    return _Rank(rank=rank, process=process, pipe=ours, stack_path=task.stack_path)


def _collect(ranks: list[_Rank], timeout_s: float) -> dict[int, RankReport]:
    deadline_s = time.monotonic() + timeout_s
    waiting = {rank.pipe: rank for rank in ranks}
    reports: dict[int, RankReport] = {}
    while waiting:
        ready = wait(list(waiting), timeout=max(0.0, deadline_s - time.monotonic()))
        if not ready:
            break
        for pipe in ready:
            rank = waiting.pop(pipe)  # type: ignore[call-overload]
            reports[rank.rank] = _receive(rank)
            if reports[rank.rank].failed:
                deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
    failures = sorted((report for report in reports.values() if report.failed), key=lambda report: report.at_s)
    if failures or waiting:
        told = [_told(report, len(ranks)) for report in failures]
        # Ranks that merely wait for one that failed tell nothing; ranks that hang by themselves tell where.
        hung = [] if failures else [_stack_of(rank, len(ranks), timeout_s) for rank in waiting.values()]
        raise RankError("\n".join(told + hung))
    return reports


def _receive(rank: _Rank) -> RankReport:
    try:
        report: RankReport = rank.pipe.recv()
    except EOFError:
        rank.process.join(1)
        word = say("mesh.rank_died", exit_code=rank.process.exitcode)
        # Time zero: that a rank died is the cause of whatever its partners report.
        return RankReport(rank=rank.rank, failed=True, at_s=0.0, payload=word)
    return report


def _told(report: RankReport, num_ranks: int) -> str:
    return f"{say('mesh.rank_failed', rank=report.rank, num_ranks=num_ranks)}\n{report.payload}"


def _stack_of(rank: _Rank, num_ranks: int, timeout_s: float) -> str:
    """Ask a hung rank for the stacks of its threads; a handler in C answers even if Python can't."""
    head = say("mesh.rank_hung", rank=rank.rank, num_ranks=num_ranks, limit_s=timeout_s)
    _signal(rank.process, STACK_SIGNAL)
    deadline_s = time.monotonic() + _STACK_S
    text = ""
    while not text.strip() and time.monotonic() < deadline_s:
        time.sleep(0.05)
        text = rank.stack_path.read_text(errors="replace") if rank.stack_path.exists() else ""
    return f"{head}\n{text}"


def _end(ranks: list[_Rank]) -> None:
    """Leave no process behind; ranks that have reported are on their way out."""
    for rank in ranks:
        rank.process.join(5)
    _kill([rank for rank in ranks if rank.process.is_alive()])
    for rank in ranks:
        rank.process.join(5)
        rank.pipe.close()


def _kill(ranks: list[_Rank]) -> None:
    """Kill ranks and whatever they started."""
    for rank in ranks:
        assert rank.process.pid is not None
        try:
            os.killpg(rank.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            rank.process.kill()


def _signal(process: BaseProcess, number: int) -> None:
    assert process.pid is not None
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:
        return
