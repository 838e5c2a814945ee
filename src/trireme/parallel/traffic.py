"""What a step sends: calls, bytes, and how long communication ran while backward still computed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Collectives of one step on one rank.

    **Units**: bytes are those of the whole tensor handed to (or gathered by) a collective, whatever the algorithm
    then moves; seconds are None where nothing was timed.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    moved_bytes: Mapping[str, int] = field(default_factory=dict)
    communication_s: float | None = None
    overlapped_s: float | None = None

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
    return Traffic(
        calls=dict(calls),
        moved_bytes=dict(moved),
        communication_s=sum(part.communication_s or 0.0 for part in timed) if timed else None,
        overlapped_s=sum(part.overlapped_s or 0.0 for part in timed) if timed else None,
    )


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
        self._spans: list[_Span] = []
        self._backward_end: _Moment | None = None

    def count(self, kind: str, moved_bytes: int) -> None:
        """Note one collective."""
        self._calls[kind] += 1
        self._bytes[kind] += moved_bytes

    def watch(self, handle: Handle, *, device: torch.device) -> None:
        """Time a communication that has just been started, if its handle can tell when it ends."""
        get_future = getattr(handle, "get_future", None)
        if get_future is None:
            return
        span = _Span(start=_Moment(device))
        self._spans.append(span)
        # A device runs the callback on a stream that waits for the communication, so a moment taken there is its end.
        get_future().then(lambda future: span.close(device))

    def end_backward(self, *, device: torch.device) -> None:
        """Note that nothing computes beside communication from here on."""
        self._backward_end = _Moment(device)

    def read(self) -> Traffic:
        """Give what was counted; call it once everything has ended."""
        spans = [span for span in self._spans if span.end is not None]
        origin = spans[0].start if spans else None
        times = sorted((span.start.since(origin), span.end.since(origin)) for span in spans) if origin else []  # type: ignore[union-attr]
        end_s = self._backward_end.since(origin) if origin and self._backward_end else 0.0
        return Traffic(
            calls=dict(self._calls),
            moved_bytes=dict(self._bytes),
            communication_s=_covered_s(times, until_s=float("inf")) if times else None,
            overlapped_s=_covered_s(times, until_s=end_s) if times else None,
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
