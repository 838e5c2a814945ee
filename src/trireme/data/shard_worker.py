"""Processes that make shards: plain interpreters, fed over pipes.

A fresh interpreter rather than multiprocessing: nothing is inherited from a parent that has threads, and a
user's script needs no ``if __name__ == "__main__"``. A worker ends when its pipe does, so none outlives a kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
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
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trireme.data.shard_worker import answer_blocks; answer_blocks()"
)


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
            worker = self._local.worker = _Worker()
            self._workers.append(worker)
            worker.ask(self._job)
        note: ShardNote = worker.ask(block)
        return note

    def close(self) -> None:
        """Stop the workers; what they have not finished is left undone."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for _ in range(2):  # a thread may have been starting its worker during the first round
            for worker in self._workers:
                worker.close()
            self._threads.shutdown(wait=True)


class _Worker:
    """One process and the pipes to it."""

    def __init__(self) -> None:
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
        # The parent's import path, so that a map function is found wherever the parent found it; a session of its
        # own, so that Ctrl-C is the parent's to handle.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )

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


def answer_blocks() -> None:
    """Answer a job, then blocks, until the pipe ends."""
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
        try:
            _send(answers, answer)
        except BrokenPipeError:  # the parent is gone; the shard stays for the next build
            os._exit(0)
