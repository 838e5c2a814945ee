"""A walk on which nothing computes: which call makes each value, and until where it is needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import count_unrun, drawn_so_far, draws_since
from trireme.parallel.absent import Absence
from trireme.parallel.gate import Gate, run_hooks
from trireme.parallel.memo import (
    Meta,
    Outcome,
    assumed_outcome,
    holds_staged,
    meta_of,
    opaque_parts,
    outcome_key,
    outcome_of,
)
from trireme.parallel.tracing_private import DEPENDS_ON_DATA, FakeTensor, bare_function_calls, pytree
from trireme.parallel.value import ValueId, number, tensors_in, value_of
from trireme.parallel.walk import Walk, depends, written_by

Memo = dict[Any, Outcome]
"""By block signature and arguments."""

_INSIDE = "_trireme_inside"


@dataclass(slots=True, kw_only=True)
class Life:
    """Of one value: the interval that makes it and the last one that needs it.

    Attributes:
        name: Of the call that made it.
        meta: Its shape.
    """

    name: str
    made: int
    used: int
    meta: Meta


class SideOutputError(Exception):
    """A block gives values by another way than its result, so it can't be skipped."""


class Trace(Walk):
    """Interval 0 stands before the first block, interval i begins where the i-th block is first entered.

    Attributes:
        entered: Paths of the blocks, in the order in which they were first entered.
        lives: Every value.
        digests: The digest with which each interval began.
        calls_at: The calls counted before each interval.
    """

    def __init__(self, absence: Absence, memo: Memo, *, is_open: bool = False, **options: Any) -> None:
        super().__init__(absence, **options)
        self.memo = memo
        self.is_open = is_open
        self.entered: list[str] = []
        self.lives: dict[ValueId, Life] = {}
        self.digests: list[int] = [0]
        self.calls_at: list[int] = [0]
        self.assumed: list[str] = []
        self.states: dict[tuple[str, int, int], None] = {}
        self.statistics: dict[str, None] = {}
        self._written_in: dict[int, int] = {}
        self.block: str | None = None
        self.watched: Mapping[int, str] = {}
        self.reused: dict[str, None] = {}
        self._given: set[int] = set()

    @property
    def interval(self) -> int:
        """The one that runs now."""
        return len(self.entered)

    def used(self, tensors: list[Tensor], name: str) -> None:
        """A value is needed as long as calls take it."""
        for tensor in tensors:
            self.use(tensor)

    def use(self, tensor: Tensor) -> None:
        """A value is needed here; blocks that can be skipped give and take values by their door alone."""
        home, value = getattr(tensor, _INSIDE, None), value_of(tensor)
        goes_round = self.block is not None and value is not None and id(tensor) not in self._given
        if (home is not None and home != self.block) or goes_round:
            raise SideOutputError
        if value is not None and value in self.lives:
            self.lives[value].used = self.interval

    def wrote(self, held: Tensor) -> None:
        """Remember where a kept tensor was written to."""
        self._written_in[id(held)] = self.interval

    def gathered(self, held: Tensor) -> None:
        """Remember what keeps something of activations from one forward to the next."""
        self.statistics[self.held[id(held)]] = None

    def _read_held(self, *arguments: Any) -> None:
        for tensor in tensors_in(*arguments):
            written = self._written_in.get(id(tensor), self.interval)
            if written < self.interval:
                self.states[self.held[id(tensor)], written, self.interval] = None

    def _reuse(self, *arguments: Any) -> None:
        for tensor in tensors_in(*arguments):
            if id(tensor) in self.watched:
                self.reused[self.watched[id(tensor)]] = None

    def made(self, tensor: Tensor, value: ValueId, name: str) -> None:
        """A value is known from here on."""
        self.lives[value] = Life(name=name, made=self.interval, used=self.interval, meta=meta_of(tensor))

    def enter(self, gate: Gate, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Meet a block: note the border, and give its outcome without running it if that is known."""
        if self.block is not None:
            return gate.call_bare(module, args, kwargs)
        self.approach(gate)
        if self.is_open:
            return gate.call_bare(module, args, kwargs)
        if self.watched:
            self._reuse(args, kwargs)
        for tensor in tensors_in(args, kwargs):
            self.use(tensor)
        if any(holds_staged(part, depends) for part in opaque_parts(args, kwargs)):
            raise SideOutputError
        result = self._outcome(gate, module, args, kwargs)
        return self.block_done(gate, result, args, kwargs)

    def approach(self, gate: Gate) -> None:
        """An interval begins where a block is first entered."""
        if self.block is None and gate.path not in self.entered:
            self._begin(gate.path)

    def _begin(self, path: str) -> None:
        self.entered.append(path)
        self.digests.append(self.digest)
        self.calls_at.append(self.calls)

    def block_done(self, gate: Gate, result: Any, args: Any, kwargs: Any) -> Any:
        """Number what a block gave."""
        label_block(self, gate, result, args, kwargs)
        return result

    def _outcome(self, gate: Gate, module: nn.Module, args: Any, kwargs: Any) -> Any:
        key = outcome_key(gate.signature, module, args, kwargs)
        known = self.memo.get(key)
        if known is not None:
            self.skipped(gate, known)
            count_unrun(module, known.draws)
            return run_hooks(module, args, kwargs, known.build(self.absence, args, kwargs))
        drawn = drawn_so_far()
        with self._inside(gate.path, tensors_in(args, kwargs)):
            result, outcome = self._walked(gate, module, args, kwargs)
        if outcome is None:
            raise SideOutputError
        outcome.draws = draws_since(drawn, module)
        self.walked(gate, outcome)
        self.memo[key] = outcome
        return result

    def _walked(self, gate: Gate, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Outcome | None]:
        try:
            result = gate.call_bare(module, args, kwargs)
        except DEPENDS_ON_DATA:
            stream = next((tensor for tensor in tensors_in(args, kwargs) if depends(tensor)), None)
            if stream is None:
                raise
            outcome = assumed_outcome(args, kwargs, stream)
            self.assumed.append(gate.path)
            return run_hooks(module, args, kwargs, outcome.build(self.absence, args, kwargs)), outcome
        if any(holds_staged(part, depends) for part in opaque_parts(result)):
            raise SideOutputError
        return result, outcome_of(result, args, kwargs)

    @contextmanager
    def _inside(self, path: str, given: Iterator[Tensor]) -> Iterator[None]:
        self.block, self._given = path, {id(tensor) for tensor in given}
        try:
            yield
        finally:
            self.block, self._given = None, set()

    def meet(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str) -> Any:
        """Inside a block that is one call, nothing is counted, but what is made is marked."""
        if self._written_in:
            self._read_held(args, kwargs)
        if self.watched and name != "__get__":
            self._reuse(args, kwargs)
        if self.block is None:
            return super().meet(func, args, kwargs, name=name)
        written = written_by(name, args, kwargs)
        if written is not None and id(written) in self.held:
            self.wrote(written)
            return written
        used = [tensor for tensor in tensors_in(args, kwargs) if depends(tensor)]
        for tensor in used:
            self.use(tensor)
        with self.aside():
            result = self._absently(func, args, kwargs)
        for tensor in tensors_in(result):
            if isinstance(tensor, FakeTensor) and value_of(tensor) is None:
                setattr(tensor, _INSIDE, self.block)
        return result

    def skipped(self, gate: Gate, outcome: Outcome) -> None:
        """Take note that a block's outcome was known."""

    def walked(self, gate: Gate, outcome: Outcome) -> None:
        """Take note of what walking through a block has told."""

    def finish(self, outputs: Any) -> None:
        """Take note that the caller needs the outputs; what an object among them holds (a cache) stays where it is."""
        for tensor in tensors_in(list_outputs(outputs)):
            self.use(tensor)
        self.digests.append(self.digest)
        self.calls_at.append(self.calls)


def list_outputs(outputs: Any) -> list[Any]:
    """Give the leaves of what a module returned."""
    leaves, _ = pytree.tree_flatten(outputs)
    return list(leaves)


def label_block(walk: Walk, gate: Gate, result: Any, args: Any, kwargs: Any) -> None:
    """Count a block as one call and number its results; an argument that no parameter made stays without a number."""
    walk.count(gate.path)
    given = {id(tensor) for tensor in tensors_in(args, kwargs) if value_of(tensor) is None}
    place = 0
    with bare_function_calls():
        for leaf in list_outputs(result):
            if not isinstance(leaf, Tensor) or id(leaf) in given:
                continue
            vars(leaf).pop(_INSIDE, None)
            value = ValueId(walk.calls, place)
            number(leaf, value)
            walk.made(leaf, value, gate.path)
            place += 1


def users_line() -> str:
    """Give the line of the user's code that is running, as far as it is neither torch's nor ours."""
    return line_of(_frames(sys._getframe(1)))


def line_of(places: Iterator[tuple[str, int]]) -> str:
    """Give the innermost place that is neither torch's nor ours."""
    last = ""
    for file, line in places:
        last = last or f"{file}:{line}"
        if not any(part in file for part in ("/torch/", "/trireme/parallel/", "/contextlib.py")):
            return f"{file}:{line}"
    return last


def _frames(frame: Any) -> Iterator[tuple[str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def line_in(error: BaseException) -> str:
    """Give the line of the user's code from which an error came."""
    places = []
    trace = error.__traceback__
    while trace is not None:
        places.append((trace.tb_frame.f_code.co_filename, trace.tb_lineno))
        trace = trace.tb_next
    return line_of(iter(reversed(places)))


def refuse_data(error: BaseException, *, is_open: bool) -> LayoutError:
    """Say that code asks for values which another stage computes."""
    if is_open:
        return LayoutError("parallel.stage_side_values", line=line_in(error))
    return LayoutError("parallel.stage_asks_values", line=line_in(error))
