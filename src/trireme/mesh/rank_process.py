"""What happens inside one rank that ``run_on_ranks`` started."""

from __future__ import annotations

import datetime
import faulthandler
import importlib
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

STACK_SIGNAL = signal.SIGUSR1
"""Asks a rank for the stacks of all its threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTask:
    """What one rank is to do, in a form that pickles."""

    module: str
    qualname: str
    rank: int
    num_ranks: int
    store_path: Path
    stack_path: Path
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What one rank sends home; ``payload`` is its return value or its traceback."""

    rank: int
    failed: bool
    at_s: float
    payload: Any


def enter_rank(task: RankTask, pipe: Connection, arguments: dict[str, Any]) -> None:
    """Join the group, run the body, report, leave."""
    os.setsid()  # a group of its own, so that whatever the body starts can be killed with it
    faulthandler.register(STACK_SIGNAL, file=open(task.stack_path, "w"), all_threads=True)  # noqa: SIM115
    threading.Thread(target=_die_with_starter, daemon=True).start()
    try:
        _join_group(task)
        value = _find(task)(**arguments)
        _leave_group()
        pipe.send(RankReport(rank=task.rank, failed=False, at_s=time.monotonic(), payload=value))
    except BaseException:
        pipe.send(RankReport(rank=task.rank, failed=True, at_s=time.monotonic(), payload=traceback.format_exc()))
        _flush()
        os._exit(1)  # a rank that failed must not wait for its partners in an exit handler
    _flush()
    os._exit(0)


def _join_group(task: RankTask) -> None:
    import torch
    import torch.distributed as dist

    place = {"RANK": task.rank, "LOCAL_RANK": task.rank, "WORLD_SIZE": task.num_ranks}
    os.environ.update({name: str(value) for name, value in place.items()}, LOCAL_WORLD_SIZE=str(task.num_ranks))
    if sys.platform == "linux":
        # Ranks of one machine need no name lookup to find each other, and it can be slow.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task.store_path}",
        rank=task.rank,
        world_size=task.num_ranks,
        timeout=datetime.timedelta(seconds=task.timeout_s),
    )


def _leave_group() -> None:
    import torch.distributed as dist

    dist.barrier()  # nobody tears connections down that another still reads from
    dist.destroy_process_group()


def _find(task: RankTask) -> Any:
    found: Any = importlib.import_module(task.module)
    for name in task.qualname.split("."):
        found = getattr(found, name)
    return inspect.unwrap(found)


def _die_with_starter() -> None:
    """Leave as soon as the process that asked for this rank is gone, however it went."""
    starter = parent_process()
    if starter is not None:
        wait([starter.sentinel])
        os.killpg(0, signal.SIGKILL)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
