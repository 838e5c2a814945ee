"""Processes that make shards: ``python -m trireme.data.shard_worker``, fed over pipes.

A fresh interpreter rather than multiprocessing: nothing is inherited from a parent that has threads, and a
user's script needs no ``if __name__ == "__main__"``. A worker ends when its pipe does, so none outlives a kill.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from trireme.data.shard import ShardNote
from trireme.data.shard_build import Block, ShardBuilder, ShardJob
from trireme.errors import DataError, TriremeError

_LENGTH = struct.Struct("<Q")


class ShardWorkers:
    """A few worker processes; ``build`` gives the notes of blocks in order while later ones are being made."""

    def __init__(self, job: ShardJob, *, num_workers: int) -> None:
        self._job = job
        self._num_workers = num_workers
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="trireme-shards")
        self._local = threading.local()
        self._workers: list[_Worker] = []

    def build(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, ShardNote]]:
        """Yield each block with its note, in order; at most two blocks a worker are held in memory."""
        pending: deque[tuple[Block, Future[ShardNote]]] = deque()
        for block in blocks:
            pending.append((block, self._threads.submit(self._one, block)))
            if len(pending) >= 2 * self._num_workers:
                first, future = pending.popleft()
                yield first, future.result()
        while pending:
            first, future = pending.popleft()
            yield first, future.result()

    def _one(self, block: Block) -> ShardNote:
        worker = getattr(self._local, "worker", None)
        if worker is None:
            worker = self._local.worker = _Worker(self._job)
            self._workers.append(worker)
        note: ShardNote = worker.ask(block)
        return note

    def close(self) -> None:
        """Stop the workers; what they have not finished is left undone."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(wait=True)


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, job: ShardJob) -> None:
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-m", "trireme.data.shard_worker"]
        # The parent's import path, so that a map function is found wherever the parent found it.
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in sys.path if path))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self.ask(job)

    def ask(self, message: object) -> Any:
        """Send one message and return the answer; raise what the worker raised."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            _send(self._process.stdin, message)
            answer = _receive(self._process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise DataError("data.worker_died", code=self._process.wait()) from error
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def _send(stream: BinaryIO | Any, message: object) -> None:
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = stream.read(length)
    if len(content) < length:
        raise EOFError
    return pickle.loads(content)


def main() -> None:
    """Answer a job, then blocks, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a map function prints must not fall into the answers
    builder: ShardBuilder | None = None
    while True:
        try:
            message = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer: object = None
            if builder is None:
                builder = ShardBuilder(message)
            else:
                answer = builder.build(message)
        except TriremeError as error:
            answer = error
        except MemoryError:
            answer = DataError("data.worker_memory")
        _send(answers, answer)


if __name__ == "__main__":
    main()
