"""One group of ranks as a wire: its collectives, what each sends of them, and, for trials, how slow it is."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.parallel.traffic import ring_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """A slower link to pretend: what each rank can send a second, and how long a message is on its way."""

    bytes_per_s: float
    latency_s: float = 0.0


class Pacer:
    """Holds a link back: what was sent leaves at a given rate, one thing after the other."""

    def __init__(
        self, pace: Pace, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._pace = pace
        self._clock, self._sleep = clock, sleep
        self._free_at_s = 0.0

    def hold(self, sent_bytes: int, *, messages: int, started_s: float) -> None:
        """Return no earlier than the pretended link would have delivered what was begun at ``started_s``."""
        self._free_at_s = max(started_s, self._free_at_s) + sent_bytes / self._pace.bytes_per_s
        left_s = self._free_at_s + messages * self._pace.latency_s - self._clock()
        if left_s > 0:
            self._sleep(left_s)

    def now_s(self) -> float:
        """Give the moment on this pacer's clock."""
        return self._clock()


class Link:
    """Collectives over a group, done when they return; every rank calls the same ones in the same order.

    Attributes:
        group: The ranks.
        degree: How many.
        sent_bytes: What this rank has sent since ``take``.
        crossing_bytes: Those that left its node; None where nodes aren't known.
    """

    def __init__(
        self, group: dist.ProcessGroup, *, nodes: Sequence[int] | None = None, pace: Pace | None = None
    ) -> None:
        """Take a group; ``nodes`` says on which node each of its ranks is."""
        self.group = group
        self.degree = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.sent_bytes = 0
        self._crossing = 0
        self._nodes = None if nodes is None else tuple(nodes)
        self._pacer = None if pace is None else Pacer(pace)

    @property
    def crossing_bytes(self) -> int | None:
        """What left the node."""
        return None if self._nodes is None else self._crossing

    def take(self) -> tuple[int, int | None]:
        """Give what was sent and what crossed nodes since the last call."""
        taken = self.sent_bytes, self.crossing_bytes
        self.sent_bytes = self._crossing = 0
        return taken

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum in place, along a ring."""
        sent = ring_bytes("all_reduce", _num_bytes(tensor), degree=self.degree)
        with self._counted(sent, crossing=self._crosses_next(sent), messages=2 * (self.degree - 1)):
            dist.all_reduce(tensor, group=self.group)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Give every rank's tensor one after the other in dim 0, along a ring."""
        gathered = tensor.new_empty((self.degree * tensor.shape[0], *tensor.shape[1:]))
        sent = ring_bytes("all_gather", _num_bytes(gathered), degree=self.degree)
        with self._counted(sent, crossing=self._crosses_next(sent), messages=self.degree - 1):
            dist.all_gather_single(gathered, tensor, group=self.group)
        return gathered

    def all_to_all(self, tensor: Tensor) -> Tensor:
        """Send each rank its equal part of dim 0; returns what the ranks sent this one, in their order."""
        received = torch.empty_like(tensor)
        sent = ring_bytes("all_to_all", _num_bytes(tensor), degree=self.degree)
        with self._counted(sent, crossing=self._crosses_to_all(sent), messages=1):
            dist.all_to_all_single(received, tensor, group=self.group)
        return received

    def _crosses_next(self, sent: int) -> int:
        """A ring's rank sends to the next one alone."""
        if self._nodes is None:
            return 0
        return sent if self._nodes[self.rank] != self._nodes[(self.rank + 1) % self.degree] else 0

    def _crosses_to_all(self, sent: int) -> int:
        if self._nodes is None or self.degree == 1:
            return 0
        elsewhere = sum(node != self._nodes[self.rank] for node in self._nodes)
        return sent * elsewhere // (self.degree - 1)

    def _counted(self, sent: int, *, crossing: int, messages: int) -> _Counted:
        self.sent_bytes += sent
        self._crossing += crossing
        return _Counted(self._pacer, sent, messages)


class _Counted:
    """Stands around a collective; with a pacer it takes as long as on the pretended link."""

    def __init__(self, pacer: Pacer | None, sent_bytes: int, messages: int) -> None:
        self._pacer, self._sent_bytes, self._messages = pacer, sent_bytes, messages

    def __enter__(self) -> None:
        self._started_s = 0.0 if self._pacer is None else self._pacer.now_s()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._pacer is not None and error is None and self._sent_bytes:
            self._pacer.hold(self._sent_bytes, messages=self._messages, started_s=self._started_s)


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
