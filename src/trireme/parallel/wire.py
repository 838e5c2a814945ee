"""A thread beside backward that sends buckets one after the other, however many collectives each takes.

Compressed sums take several collectives with computing in between. Were they started from backward's hooks, one
bucket's second collective would meet another bucket's first on some ranks; a queue of its own keeps the order in
which buckets were handed over, which is the same on all ranks.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from trireme.parallel.bucket import Bucket
from trireme.parallel.link import Link

Job = Callable[[], None]


class Summation(Protocol):
    """Sums a bucket's ``flat`` over ranks, in place, and is done when it returns.

    Attributes:
        block: Elements that are coded together; every parameter begins with a new block.
        multiple: What a bucket's elements must be a multiple of.
    """

    block: int
    multiple: int

    def sum(self, bucket: Bucket) -> None:
        """Sum it."""
        ...


class PlainSum:
    """The sum as it is, over a link."""

    block = 1
    multiple = 1

    def __init__(self, link: Link) -> None:
        self.link = link

    def sum(self, bucket: Bucket) -> None:
        """Sum along a ring."""
        self.link.all_reduce(bucket.flat)


class Ticket:
    """A job of the wire. Satisfies ``Handle``."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._listeners: list[Job] = []
        self._error: BaseException | None = None
        self._arrived: torch.Event | None = None

    def wait(self) -> None:
        """Return when what was summed may be read; a job's error is raised here."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        if self._arrived is not None:
            torch.accelerator.current_stream().wait_event(self._arrived)

    def when_done(self, listener: Job) -> None:
        """Call when the job is over, on the wire's thread; at once if it is."""
        with self._lock:
            if not self._done.is_set():
                self._listeners.append(listener)
                return
        listener()

    def close(self, error: BaseException | None, arrived: torch.Event | None) -> None:
        """Tell those who wait."""
        with self._lock:
            self._error, self._arrived = error, arrived
            for listener in self._listeners:
                listener()
            self._done.set()


class Wire:
    """Sums buckets in the order in which they are handed over. Satisfies ``Exchange``.

    Args:
        summation: How.
        links: Those it sends on, for the count.
        plain: Sums buckets that aren't to be compressed. Default: as the others.
        device: Where buckets lie.
    """

    def __init__(
        self,
        summation: Summation,
        *,
        links: Sequence[Link],
        device: torch.device,
        plain: Summation | None = None,
    ) -> None:
        self.summation = summation
        self.plain = plain or summation
        self._links = tuple(links)
        self._device = device
        self._jobs: queue.SimpleQueue[tuple[Job, Ticket, torch.Event | None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        is_here = torch.accelerator.is_available() and device.type == torch.accelerator.current_accelerator().type  # type: ignore[union-attr]
        self._stream = torch.Stream(device) if is_here else None

    def __call__(self, bucket: Bucket, *, pack: Job | None = None, after: torch.Event | None = None) -> Ticket:
        """Hand over a bucket; ``pack`` fills it first, once the device has reached ``after`` (default: here)."""
        if self._stream is not None and after is None:
            after = torch.Event(self._device)
            after.record()
        summation = self.plain if bucket.is_plain else self.summation

        def job() -> None:
            if pack is not None:
                pack()
            summation.sum(bucket)

        ticket = Ticket()
        self._start()
        self._jobs.put((job, ticket, after))
        return ticket

    def take(self) -> tuple[int, int | None]:
        """Give bytes sent, and those that crossed nodes (None: not known), since the last call."""
        taken = [link.take() for link in self._links]
        crossing = [each for _, each in taken if each is not None]
        return sum(sent for sent, _ in taken), sum(crossing) if crossing else None

    def close(self) -> None:
        """End the thread; what was handed over is done first."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trireme-wire", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        if self._device.index is not None and self._stream is not None:
            torch.accelerator.set_device_index(self._device.index)
        with torch.no_grad(), self._stream or contextlib.nullcontext():
            while (given := self._jobs.get()) is not None:
                self._do(*given)

    def _do(self, job: Job, ticket: Ticket, after: torch.Event | None) -> None:
        """Run a job; after one has failed the others can't meet their partners any more."""
        arrived = None
        if self._error is None:
            try:
                if self._stream is not None and after is not None:
                    self._stream.wait_event(after)
                job()
                if self._stream is not None:
                    arrived = torch.Event(self._device)
                    arrived.record(self._stream)
            except BaseException as error:  # whoever waits raises it
                self._error = error
        ticket.close(self._error, arrived)
