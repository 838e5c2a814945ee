"""What a step sends: calls, bytes, and how long communication ran while backward still computed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Collectives of one step on one rank.

    ``crossing_bytes`` are those of ``sent_bytes`` that leave the node, where nodes are known.

    **Units**: ``moved_bytes`` are those of the whole tensor handed to (or gathered by) a collective, whatever the
    algorithm then moves; ``sent_bytes`` what this rank sends of it (see ``ring_bytes``), as compressed as it travels;
    seconds are None where nothing was timed.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    sent_bytes: int = 0
    crossing_bytes: int | None = None
    communication_s: float | None = None
    overlapped_s: float | None = None

    @property
    def exposed_s(self) -> float | None:
        """Time in which communication ran and backward didn't."""
        if self.communication_s is None or self.overlapped_s is None:
            return None
        return max(0.0, self.communication_s - self.overlapped_s)

    @property
    def overlap_ratio(self) -> float | None:
        """Share of the time communication ran in which backward computed."""
        if not self.communication_s or self.overlapped_s is None:
            return None
        return self.overlapped_s / self.communication_s


def add_traffic(parts: Sequence[Traffic]) -> Traffic:
    """Add up what several syncs sent."""
    calls: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for part in parts:
        calls.update(part.calls)
        moved.update(part.moved_bytes)
    timed = [part for part in parts if part.communication_s is not None]
    crossing = [part.crossing_bytes for part in parts if part.crossing_bytes is not None]
    return Traffic(
        calls=dict(calls),
        moved_bytes=dict(moved),
        sent_bytes=sum(part.sent_bytes for part in parts),
        crossing_bytes=sum(crossing) if crossing else None,
        communication_s=sum(part.communication_s or 0.0 for part in timed) if timed else None,
        overlapped_s=sum(part.overlapped_s or 0.0 for part in timed) if timed else None,
    )


def ring_bytes(kind: str, whole_bytes: int, *, degree: int) -> int:
    """Give what each rank of a ring sends for one collective on a whole tensor; a broadcast travels along the ring.

    **Source**: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009, section 3.
    """
    if degree <= 1:
        return 0
    word = kind.partition(" ")[0]
    if word == "send":
        return whole_bytes
    passes = 2 if word in ("all_reduce", "agree") else 1
    return passes * (degree - 1) * whole_bytes // degree


class Handle(Protocol):
    """A communication under way."""

    def wait(self) -> object:
        """Return when what was sent may be read."""
        ...


class TrafficMeter:
    """Counts the collectives of the step under way and, where asked, times those that run beside backward."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin a step."""
        self._calls: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._sent_bytes = 0
        self._crossing_bytes: int | None = None
        self._blocked_s: float | None = None
        self._spans: list[_Span] = []
        self._backward_end: _Moment | None = None

    def count(self, kind: str, moved_bytes: int, *, degree: int = 1) -> None:
        """Note one collective; with the ranks that take part, also what this one sends."""
        self._calls[kind] += 1
        self._bytes[kind] += moved_bytes
        self._sent_bytes += ring_bytes(kind, moved_bytes, degree=degree)

    def add_sent(self, sent_bytes: int, crossing_bytes: int | None) -> None:
        """Note what somebody else counted of what was sent."""
        self._sent_bytes += sent_bytes
        if crossing_bytes is not None:
            self._crossing_bytes = (self._crossing_bytes or 0) + crossing_bytes

    def watch(self, handle: Handle, *, device: torch.device) -> None:
        """Time a communication that has just been started, if its handle can tell when it ends."""
        when_done = getattr(handle, "when_done", None)
        get_future = getattr(handle, "get_future", None)
        if get_future is None and when_done is None:
            return
        span = _Span(start=_Moment(device))
        self._spans.append(span)
        if when_done is not None:
            when_done(lambda: span.close(device))
            return
        assert get_future is not None
        # A device runs the callback on a stream that waits for the communication, so a moment taken there is its end.
        get_future().then(lambda future: span.close(device))

    @contextmanager
    def blocked(self, device: torch.device) -> Iterator[None]:
        """Time a collective that the host waits for, so that none of it is beside backward.

        Where a device queues work the host's time says nothing, and nothing is noted.
        """
        started = _Moment(device)
        yield
        if started.event is None:
            self._blocked_s = (self._blocked_s or 0.0) + _Moment(device).since(started)

    def end_backward(self, *, device: torch.device) -> None:
        """Note that nothing computes beside communication from here on."""
        self._backward_end = _Moment(device)

    def read(self) -> Traffic:
        """Give what was counted; call it once everything has ended."""
        spans = [span for span in self._spans if span.end is not None]
        origin = spans[0].start if spans else None
        times = sorted((span.start.since(origin), span.end.since(origin)) for span in spans) if origin else []  # type: ignore[union-attr]
        end_s = self._backward_end.since(origin) if origin and self._backward_end else 0.0
        is_timed = bool(times) or self._blocked_s is not None
        beside_s = _covered_s(times, until_s=float("inf"))
        return Traffic(
            calls=dict(self._calls),
            moved_bytes=dict(self._bytes),
            sent_bytes=self._sent_bytes,
            crossing_bytes=self._crossing_bytes,
            communication_s=beside_s + (self._blocked_s or 0.0) if is_timed else None,
            overlapped_s=_covered_s(times, until_s=end_s) if is_timed else None,
        )


class _Moment:
    """A point in time: of the host, or of a device's stream where work is queued rather than done."""

    def __init__(self, device: torch.device) -> None:
        self.host_s = time.perf_counter()
        self.event: torch.Event | None = None
        if torch.accelerator.is_available() and device.type == torch.accelerator.current_accelerator().type:  # type: ignore[union-attr]
            self.event = torch.Event(device, enable_timing=True)
            self.event.record()

    def since(self, other: _Moment) -> float:
        """Give the seconds from another moment of the same clock to this one."""
        if self.event is None or other.event is None:
            return self.host_s - other.host_s
        self.event.synchronize()
        return other.event.elapsed_time(self.event) / 1e3


@dataclass(slots=True)
class _Span:
    start: _Moment
    end: _Moment | None = None

    def close(self, device: torch.device) -> None:
        self.end = _Moment(device)


def _covered_s(times: Sequence[tuple[float, float]], *, until_s: float) -> float:
    """Give how much time at least one span covers, up to a moment; spans are sorted by start."""
    covered, reached = 0.0, float("-inf")
    for start, end in times:
        first, last = max(start, reached), min(end, until_s)
        covered += max(0.0, last - first)
        reached = max(reached, last)
    return covered
