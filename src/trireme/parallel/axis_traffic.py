"""What a step sent on each axis of a layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trireme.interpret import Line
from trireme.parallel.sync import GradientSync
from trireme.parallel.traffic import Traffic, ring_bytes
from trireme.parallel.wires import Wires


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTraffic:
    """What one rank sent in one step.

    Attributes:
        by_axis: Bytes by axis: ``dp`` (gradients, ZeRO's gathers), ``outer`` (replicas that train by themselves),
            ``tp``, ``cp``, ``ep``, ``pp``.
        gradients: The part of data parallelism, with its times.
    """

    by_axis: Mapping[str, int]
    gradients: Traffic

    @property
    def sent_bytes(self) -> int:
        """On all axes."""
        return sum(self.by_axis.values())


class AxisTraffic:
    """Reads, once a step, what has been sent since it last did.

    Args:
        sync: Sums gradients.
        lines: Counted collectives by axis.
        sent_on: Bytes sent so far, by axis, where something else counts them.
        wires: What replicas meet on.
    """

    def __init__(
        self,
        sync: GradientSync,
        *,
        lines: Mapping[str, Line],
        sent_on: Mapping[str, Callable[[], int]],
        wires: Wires,
    ) -> None:
        self._sync = sync
        self._wires = wires
        self._counters = {axis: _sent_on(line) for axis, line in lines.items()} | dict(sent_on)
        self._before = dict.fromkeys(self._counters, 0)

    def read(self) -> StepTraffic:
        """Give the step's."""
        by_axis = {"dp": self._sync.traffic.sent_bytes}
        outer = self._wires.take_outer()
        if outer is not None:
            by_axis["outer"] = outer.sent_bytes
        for axis, counter in self._counters.items():
            now = counter()
            by_axis[axis] = now - self._before[axis]
            self._before[axis] = now
        return StepTraffic(by_axis=by_axis, gradients=self._sync.traffic)


def _sent_on(line: Line) -> Callable[[], int]:
    def sent() -> int:
        counted = line.count.num_bytes.items()
        return sum(ring_bytes(kind, size, degree=line.degree) for kind, size in counted)

    return sent
