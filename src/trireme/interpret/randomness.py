"""Random numbers of any module, drawn by counting: equal on one device and in any layout.

What is drawn depends on the run's seed, the place in the model (the module's path and how many draws came before it
there in this forward), the step, and the element's number in the global tensor, whose first dim counts rows of the
global batch. So it doesn't depend on how ranks and micro-batches share out batch, sequence, heads or widths, nor on
whether it is drawn again for recomputation.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trireme.interpret.counter import dropout_key, signed, stream_key
from trireme.interpret.host_random import HostGenerators
from trireme.interpret.random_place import Layout, place_of
from trireme.interpret.random_rule import RANDOM_RULES
from trireme.interpret.torch_private import calls_watched, is_met_by, watching
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where in training a forward stands.

    Attributes:
        step: Number of the step.
        first_row: Row of the global batch that this forward's rows begin at.
        rows: Rows of this forward.
    """

    step: int
    first_row: int
    rows: int


class _Running(threading.local):
    """The randomness of the forward that runs in this thread."""

    now: CountedRandomness | None = None
    site: int | None = None


_RUNNING = _Running()


class CountedRandomness(TorchFunctionMode):
    """Replaces the random numbers of a module's forward.

    Args:
        module: The root; draws are named by the paths below it.
        seed: The run's seed.
        ranks: This rank's place on each axis along which interpreters cut tensors, by the axis's name.
        notice: Told once of everything that depends on the layout all the same.
    """

    def __init__(
        self, module: nn.Module, *, seed: int, ranks: Mapping[str, int], notice: Callable[[str], None]
    ) -> None:
        super().__init__()
        self.seed, self.ranks = seed, dict(ranks)
        self.clock = Clock(step=0, first_row=0, rows=1)
        self._paths = {id(each): path for path, each in module.named_modules()}
        self._notice, self._told = notice, set[str]()
        self._drawn: Counter[str] = Counter()
        self._inside: list[str] = []
        self._rows_unknown = 0
        self._host = HostGenerators(module, seed=seed)

    @contextmanager
    def at(self, *, step: int, first_row: int, rows: int) -> Iterator[None]:
        """Run one forward; enter it inside the interpreters' contexts, so that draws are met here first."""
        with self._host.at(step), self._forward(Clock(step=step, first_row=first_row, rows=rows), Counter()):
            yield

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Run a forward that doesn't train, in which at most Python or numpy decides something."""
        with self._host.at(0):
            yield

    @contextmanager
    def _forward(self, clock: Clock, drawn: Counter[str], inside: tuple[str, ...] = ()) -> Iterator[None]:
        before = self.clock, self._drawn, self._inside, _RUNNING.now
        self.clock, self._drawn, self._inside, _RUNNING.now = clock, drawn, list(inside), self
        try:
            with ExitStack() as stack:
                stack.enter_context(calls_watched(self._enter, self._leave))
                stack.enter_context(watching(None, self._recompute))
                if not is_met_by(self):
                    stack.enter_context(self)
                yield
        finally:
            self.clock, self._drawn, self._inside, _RUNNING.now = before

    def _recompute(
        self, generator: Callable[..., Iterator[None]], function: Any, rest: tuple[Any, ...], options: Any
    ) -> Iterator[None]:
        """Let what is made anew in backward draw what it drew in its forward, whichever forward runs by then."""
        clock, drawn, inside = self.clock, self._drawn.copy(), tuple(self._inside)
        host = self._host.states()

        def again(*args: Any, **kwargs: Any) -> Any:
            with self._host.back_at(host), self._forward(clock, drawn.copy(), inside):
                return function(*args, **kwargs)

        return generator(again, *rest, **options)

    def _enter(self, module: nn.Module) -> None:
        self._inside.append(self._paths.get(id(module), self._inside[-1] if self._inside else ""))

    def _leave(self, module: nn.Module) -> None:
        if self._inside:
            self._inside.pop()

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """Run a module's forward without calling the module."""
        self._enter(module)
        try:
            yield
        finally:
            self._leave(module)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        rule = RANDOM_RULES.get(func)
        result = NotImplemented if rule is None else rule(self, func, args, kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    @property
    def path(self) -> str:
        """The module whose forward runs."""
        return self._inside[-1] if self._inside else ""

    @property
    def drawn(self) -> Counter[str]:
        """How often was drawn at each place since this forward began."""
        return self._drawn

    def path_of(self, module: nn.Module) -> str | None:
        """Give the path under which a module's draws are counted, None for one that isn't of the model."""
        return self._paths.get(id(module))

    def next_key(self) -> int:
        """Give the key of the next draw at this place."""
        if _RUNNING.site is not None:
            return dropout_key(self.seed, _RUNNING.site, self.clock.step)
        path = self.path
        number = self._drawn[path]
        self._drawn[path] += 1
        site = f"{path}@{number}" if number else path
        return dropout_key(self.seed, signed(stream_key(site)), self.clock.step)

    def layout_of(self, tensor: Tensor) -> Layout:
        """Give where a tensor's elements lie in the global one; tells if its rows can't be placed."""
        layout, placed = place_of(tensor, self.ranks, first_row=self.clock.first_row, rows=self.clock.rows)
        if not placed or self._rows_unknown:
            self.tell("interpret.random_unplaced")
        if tensor.ndim and tensor.numel() == 1 and self.clock.rows == 1 and self.clock.first_row:
            self.tell("interpret.random_one_row")
        return layout

    def tell(self, key: str) -> None:
        """Say once for each place what depends on the layout."""
        sentence = say(key, path=self.path)
        if sentence not in self._told:
            self._told.add(sentence)
            self._notice(sentence)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Walk through part of a forward that will be walked through again: its draws don't count."""
    running = _RUNNING.now
    drawn = None if running is None else running._drawn.copy()
    try:
        yield
    finally:
        if running is not None and drawn is not None:
            running._drawn = drawn


def running_randomness() -> CountedRandomness | None:
    """Give the randomness of the forward that runs in this thread, None if nothing is counted."""
    return _RUNNING.now


def is_counting() -> bool:
    """Whether random numbers are drawn by counting in this thread, here and now."""
    return _RUNNING.now is not None


@contextmanager
def drawing_at(site_key: int) -> Iterator[None]:
    """Name the place of the draws inside; by default it is the path of the module that draws."""
    before, _RUNNING.site = _RUNNING.site, site_key
    try:
        yield
    finally:
        _RUNNING.site = before


@contextmanager
def rows_unknown() -> Iterator[None]:
    """Compute on rows from elsewhere: what is drawn for them has no place in the global batch, which is told."""
    running = _RUNNING.now
    if running is None:
        yield
        return
    running._rows_unknown += 1
    try:
        # An operation's inside isn't met by the modes that met the operation.
        with nullcontext() if is_met_by(running) else running:
            yield
    finally:
        running._rows_unknown -= 1
