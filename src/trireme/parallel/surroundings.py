"""The modes in which a forward and its loss run on a rank: context parallelism outside, tensor parallelism inside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trireme.interpret import Binding, ContextBinding, CountedRandomness, is_counting
from trireme.parallel.branch import RouteAgreement
from trireme.parallel.keep import KeptNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Where in training a forward stands: its step, and which rows of the global batch it has."""

    step: int
    first_row: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The interpreters of one rank; None where an axis has one rank."""

    binding: Binding | None = None
    context: ContextBinding | None = None
    randomness: CountedRandomness | None = None
    numbers: KeptNumbers | None = None
    route: RouteAgreement | None = None

    def start(self) -> None:
        """Begin a step, or an evaluation: all its forwards count as one."""
        if self.numbers is not None:
            self.numbers.start()
        if self.route is not None:
            self.route.start()

    @contextmanager
    def forward(self, moment: Moment | None) -> Iterator[None]:
        """Meet every call of one forward, and draw what it draws by counting from where it stands in training."""
        if self.numbers is not None:
            self.numbers.go_back()
        with self.active():
            if self.randomness is None:
                yield
            elif moment is None:
                with self.randomness.uncounted():
                    yield
            else:
                with self.randomness.at(step=moment.step, first_row=moment.first_row, rows=moment.rows):
                    yield

    @contextmanager
    def active(self) -> Iterator[None]:
        """Meet every call made inside. Entering again inside costs next to nothing."""
        if self.context is None and self.binding is None:
            yield
        elif self.context is None:
            assert self.binding is not None
            with self.binding.active():
                yield
        elif self.binding is None:
            with self.context.active():
                yield
        else:
            with self.context.active(), self.binding.active():
                yield

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Meet every call of a part of the running forward that is looked at by itself."""
        with self.active():
            if self.randomness is None or not is_counting():
                yield
            else:
                with self.randomness:
                    yield

    def batch(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        """Give the batch as a forward gets it: its sequences known, vectors along them cut."""
        return batch if self.context is None else self.context.batch(batch)

    def part(self, loss: Tensor) -> Tensor:
        """Give what this rank differentiates of a loss that all ranks of a sequence know."""
        return loss if self.context is None else self.context.part(loss)

    def whole(self, outputs: Any) -> Any:
        """Give outputs with nothing cut."""
        tensor_whole = outputs if self.binding is None else self.binding.whole(outputs)
        return tensor_whole if self.context is None else self.context.whole(tensor_whole)
