"""What a data worker process runs: prepare every k-th step into shared memory until nobody listens.

The trainer's end of the socket closing is the only order to stop, so a trainer that is killed takes its
workers with it. Ctrl-C is the trainer's to handle.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import traceback
from collections import deque
from dataclasses import dataclass
from functools import cached_property
from itertools import count, takewhile
from multiprocessing.connection import Connection
from typing import Any

from trireme.data.slot import Slots, SlotShape, map_slots
from trireme.errors import TriremeError

_ORPHAN_CHECK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """What the trainer sends first: the stream as bytes, so that its failing to load can be reported."""

    stream: bytes
    first_step: int
    last_step: int | None
    stride: int
    global_batch_seqs: int
    dp_rank: int
    dp_degree: int
    shape: SlotShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A batch stands in a slot."""

    step: int
    slot: int
    num_real_tokens: int
    num_target_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A step could not be prepared; ``error`` is the pickled exception, or None if it can't be pickled."""

    step: int
    error: bytes | None
    kind: str
    text: str


def serve(socket_descriptor: int, memory_descriptor: int, parent: int) -> None:
    """Prepare steps until the trainer closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # a user's print must not get between the lines of a command's output
    connection = Connection(socket_descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        task: WorkerTask = connection.recv()
        _prepare_steps(connection, task, slots=map_slots(memory_descriptor, shape=task.shape), parent=parent)
        while True:  # done or failed: the slots stay until the trainer has read them
            _next_message(connection, parent=parent)


def _prepare_steps(connection: Connection, task: WorkerTask, *, slots: Slots, parent: int) -> None:
    preparer = _Preparer(task, slots)
    free = deque(range(task.shape.num_slots))
    steps = count(task.first_step, task.stride)
    for step in takewhile(lambda number: task.last_step is None or number < task.last_step, steps):
        while not free or connection.poll(0):
            free.append(_next_message(connection, parent=parent))
        answer = preparer.prepare(step, slot=free.popleft())
        connection.send(answer)
        if isinstance(answer, Failed):
            return


class _Preparer:
    """Reads steps into slots; whatever goes wrong becomes an answer."""

    def __init__(self, task: WorkerTask, slots: Slots) -> None:
        self._task = task
        self._slots = slots

    @cached_property
    def _stream(self) -> Any:
        return pickle.loads(self._task.stream)

    def prepare(self, step: int, *, slot: int) -> Ready | Failed:
        try:
            return self._read(step, slot=slot)
        except Exception as error:
            return _failure(error, step=step)

    def _read(self, step: int, *, slot: int) -> Ready:
        task = self._task
        batch = self._stream.read_into(
            self._slots.blocks[slot],
            step,
            global_batch_seqs=task.global_batch_seqs,
            dp_rank=task.dp_rank,
            dp_degree=task.dp_degree,
        )
        self._slots.ids[slot] = batch.sample_ids
        return Ready(
            step=step, slot=slot, num_real_tokens=batch.num_real_tokens, num_target_tokens=batch.num_target_tokens
        )


def _failure(error: Exception, *, step: int) -> Failed:
    if not isinstance(error, TriremeError):
        error.add_note("".join(traceback.format_exception(error)))
    return Failed(step=step, error=_pickled(error), kind=type(error).__name__, text=str(error))


def _pickled(error: Exception) -> bytes | None:
    """Return the exception as bytes if it survives the way there and back; many with own arguments do not."""
    try:
        packed = pickle.dumps(error)
        pickle.loads(packed)
    except Exception:
        return None
    return packed


def _next_message(connection: Connection, *, parent: int) -> Any:
    """Wait for the trainer; end if it is gone though something it started holds the socket open."""
    while not connection.poll(_ORPHAN_CHECK_S):
        if os.getppid() != parent:
            raise EOFError
    return connection.recv()
