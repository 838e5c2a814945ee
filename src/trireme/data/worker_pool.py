"""The trainer's side of data workers: start them, take batches in order, notice when one dies, end them all."""

from __future__ import annotations

import json
import os
import pickle
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from trireme.data.batch import Batch
from trireme.data.order import share_of_rank
from trireme.data.slot import Slots, SlotShape, allocate_memory, map_slots
from trireme.data.worker import Failed, Ready, WorkerTask
from trireme.errors import DataError
from trireme.words import say

_LOOK_S = 0.5  # a dead worker closes its socket at once, unless a child of its own still holds it
_ENDING_S = 2.0
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trireme.data.worker import serve; serve(*map(int, sys.argv[2:]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Which part of a stream is read."""

    global_batch_seqs: int
    first_step: int = 0
    last_step: int | None = None
    dp_rank: int = 0
    dp_degree: int = 1

    @property
    def num_rows(self) -> int:
        """Samples a step on this rank."""
        mine = share_of_rank(self.global_batch_seqs, dp_rank=self.dp_rank, dp_degree=self.dp_degree)
        return int(mine.stop - mine.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    connection: Connection
    slots: Slots


class WorkerPool:
    """``workers`` processes; worker w prepares the steps that leave w when divided by ``workers``.

    The processes are plain interpreters that load this package and nothing of the caller's main module, so a
    script needs no ``if __name__ == "__main__"``.
    """

    def __init__(self, stream: Any, reading: Reading, *, workers: int, prefetch: int) -> None:
        if not hasattr(os, "fork"):
            raise DataError("sample.workers_need_posix", workers=workers)
        self._workers: list[_Worker] = []
        shape = SlotShape(num_slots=prefetch, num_rows=reading.num_rows, seq_len=stream.seq_len)
        packed = pickle.dumps(stream)
        try:
            for number in range(workers):
                task = _task_of(number, packed, reading, workers=workers, shape=shape)
                self._workers.append(_start_worker(number, task))
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [worker.process.pid for worker in self._workers]

    def take(self, step: int) -> Batch:
        """Return the batch of ``step``, copied out of its slot.

        Raises:
            DataError: The worker died.
            Exception: Whatever was raised in the worker.
        """
        worker = self._workers[step % len(self._workers)]
        answer = _receive(worker, step=step)
        if isinstance(answer, Failed):
            raise _rebuilt(answer, worker=worker)
        block = worker.slots.blocks[answer.slot].copy()
        ids = worker.slots.ids[answer.slot].copy()
        with suppress(OSError):  # a worker that died meanwhile is noticed when its next batch is due
            worker.connection.send(answer.slot)
        return Batch(
            step=step,
            sample_ids=ids,
            input_ids=block[0],
            labels=block[1],
            position_ids=block[2],
            document_ids=block[3],
            num_real_tokens=answer.num_real_tokens,
            num_target_tokens=answer.num_target_tokens,
        )

    def close(self) -> None:
        """End all workers; a second call does nothing."""
        for worker in self._workers:
            with suppress(OSError):
                worker.connection.close()
        for worker in self._workers:
            _end(worker.process)
        self._workers.clear()


def _task_of(number: int, packed: bytes, reading: Reading, *, workers: int, shape: SlotShape) -> WorkerTask:
    return WorkerTask(
        stream=packed,
        first_step=reading.first_step + (number - reading.first_step) % workers,
        last_step=reading.last_step,
        stride=workers,
        global_batch_seqs=reading.global_batch_seqs,
        dp_rank=reading.dp_rank,
        dp_degree=reading.dp_degree,
        shape=shape,
    )


def _start_worker(number: int, task: WorkerTask) -> _Worker:
    memory = allocate_memory(task.shape)
    ours, theirs = socket.socketpair()
    try:
        arguments = [json.dumps(sys.path), str(theirs.fileno()), str(memory), str(os.getpid())]
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *arguments],
            pass_fds=[theirs.fileno(), memory],
            stdin=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C goes to the trainer, which then closes the sockets
        )
        worker = _Worker(
            number=number,
            process=process,
            connection=Connection(ours.detach()),
            slots=map_slots(memory, shape=task.shape),
        )
    finally:
        theirs.close()
        ours.close()
        os.close(memory)
    with suppress(OSError):  # a worker that can't even start is noticed when its first batch is due
        worker.connection.send(task)
    return worker


def _receive(worker: _Worker, *, step: int) -> Ready | Failed:
    try:
        while not worker.connection.poll(_LOOK_S):
            if worker.process.poll() is not None and not worker.connection.poll(0):
                raise EOFError
        answer: Ready | Failed = worker.connection.recv()
    except (EOFError, ConnectionError) as error:
        raise _obituary(worker, step=step) from error
    return answer


def _obituary(worker: _Worker, *, step: int) -> DataError:
    _end(worker.process)
    code = worker.process.returncode
    fate = say("sample.fate_signal", signal=-code) if code < 0 else say("sample.fate_exit", code=code)
    return DataError("sample.worker_died", worker=worker.number, pid=worker.process.pid, fate=fate, step=step)


def _rebuilt(failed: Failed, *, worker: _Worker) -> Exception:
    if failed.error is not None:
        error: Exception = pickle.loads(failed.error)
        return error
    return DataError("sample.worker_error", worker=worker.number, step=failed.step, kind=failed.kind, text=failed.text)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait a moment for a process that has been told to end, then make it."""
    for insist in (process.terminate, process.kill):
        try:
            process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            insist()
        else:
            return
    process.wait()
