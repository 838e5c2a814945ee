"""Batches in order, prepared ahead: by one thread, or by processes where a sample_map is slow.

Reading tokens is a copy from mapped memory, so one thread keeps up with any trainer and costs nothing to
start. Processes pay for their own copy of each batch and are worth it only when a function runs per sample.
Whatever is chosen, the batches are the same.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from trireme.data.batch import Batch
from trireme.data.worker_pool import Reading, WorkerPool
from trireme.errors import DataError

_STOP_CHECK_S = 0.1


class _Supply(Protocol):
    def take(self, step: int) -> Batch: ...
    def close(self) -> None: ...


class Loader:
    """Iterates over one rank's batches from ``first_step`` up to, not including, ``last_step``.

    Args:
        stream: A ``SampleStream``.
        global_batch_seqs: Samples a step, over all ranks.
        last_step: None: endless.
        workers: 0: one thread (none if there is a sample_map, for it may draw from global random states);
            k: processes.
        prefetch: Batches prepared ahead, per worker.
    """

    def __init__(
        self,
        stream: Any,
        *,
        global_batch_seqs: int,
        first_step: int = 0,
        last_step: int | None = None,
        dp_rank: int = 0,
        dp_degree: int = 1,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        reading = Reading(
            global_batch_seqs=global_batch_seqs,
            first_step=first_step,
            last_step=last_step,
            dp_rank=dp_rank,
            dp_degree=dp_degree,
        )
        self.next_step = first_step
        self._last_step = last_step
        self._supply = _open_supply(stream, reading, workers=workers, prefetch=prefetch)
        # Also runs when the loader is dropped or the interpreter ends: no process or thread outlives it.
        self._close: Callable[[], Any] = weakref.finalize(self, self._supply.close)
        self._closed = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        if self._last_step is not None and self.next_step >= self._last_step:
            self.close()
            raise StopIteration
        if self._closed:
            raise DataError("sample.loader_closed")
        try:
            batch = self._supply.take(self.next_step)
        except BaseException:
            self.close()
            raise
        self.next_step += 1
        return batch

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty where there are none."""
        return self._supply.pids if isinstance(self._supply, WorkerPool) else []

    def close(self) -> None:
        """Stop preparing and end workers; a second call does nothing."""
        self._closed = True
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_supply(stream: Any, reading: Reading, *, workers: int, prefetch: int) -> _Supply:
    if workers:
        return WorkerPool(stream, reading, workers=workers, prefetch=prefetch)
    if stream.sample_map is not None:
        return _Direct(stream, reading)
    return _Thread(stream, reading, prefetch=prefetch)


def _read(stream: Any, reading: Reading, step: int) -> Batch:
    batch: Batch = stream.read(
        step,
        global_batch_seqs=reading.global_batch_seqs,
        dp_rank=reading.dp_rank,
        dp_degree=reading.dp_degree,
    )
    return batch


class _Direct:
    """Reads when asked. A sample_map may draw from global random states, which the caller's thread shares."""

    def __init__(self, stream: Any, reading: Reading) -> None:
        self._stream = stream
        self._reading = reading

    def take(self, step: int) -> Batch:
        return _read(self._stream, self._reading, step)

    def close(self) -> None:
        """Nothing runs that would have to end."""


class _Thread:
    """Reads ahead in a thread; numpy lets go of the interpreter's lock while it copies."""

    def __init__(self, stream: Any, reading: Reading, *, prefetch: int) -> None:
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue(maxsize=prefetch)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_read_ahead, args=(stream, reading, self._ready, self._stopped), name="trireme-data", daemon=True
        )
        self._thread.start()

    def take(self, step: int) -> Batch:
        found = self._ready.get()
        if isinstance(found, BaseException):
            raise found
        assert found.step == step
        return found

    def close(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _read_ahead(
    stream: Any, reading: Reading, ready: queue.Queue[Batch | BaseException], stopped: threading.Event
) -> None:
    step = reading.first_step
    while not stopped.is_set() and (reading.last_step is None or step < reading.last_step):
        try:
            found: Batch | BaseException = _read(stream, reading, step)
        except BaseException as error:
            found = error
        _put(found, ready, stopped)
        if isinstance(found, BaseException):
            return
        step += 1


def _put(found: Batch | BaseException, ready: queue.Queue[Batch | BaseException], stopped: threading.Event) -> None:
    while not stopped.is_set():
        try:
            ready.put(found, timeout=_STOP_CHECK_S)
        except queue.Full:
            continue
        return
