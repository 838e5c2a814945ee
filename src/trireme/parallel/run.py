"""One stage's part of a forward: absent before it, computed inside it, left as soon as the next stage begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import count_unrun, host_state
from trireme.parallel.absent import Absence, become
from trireme.parallel.gate import Gate, run_hooks
from trireme.parallel.memo import outcome_key
from trireme.parallel.route import Route
from trireme.parallel.trace import Memo, label_block, list_outputs
from trireme.parallel.tracing_private import bare_function_calls, is_innermost
from trireme.parallel.value import ValueId, is_absent, notes_of, seen_shape
from trireme.parallel.walk import Walk


class StageDoneError(BaseException):
    """The next stage begins here; nobody's ``except Exception`` may stop it."""


class StaleRouteError(BaseException):
    """The forward took another way than the trace for batches of this kind."""


class StageRun(Walk):
    """The walk on which one stage computes."""

    def __init__(
        self,
        absence: Absence,
        memo: Memo,
        *,
        stage: int,
        cuts: Sequence[int],
        route: Route,
        received: Sequence[Tensor],
        is_open: bool,
        held: Mapping[int, str],
        twin_of: Callable[[nn.Parameter], Tensor],
        seed: int,
    ) -> None:
        super().__init__(absence, held=held, twin_of=twin_of, seed=seed)
        self.memo = memo
        self.stage = stage
        self.cuts = cuts
        self.route = route
        self.received = received
        self.is_open = is_open
        self.segment = 0
        self.is_active = stage == 0
        self.is_done = False
        self._in_block = False
        incoming = route.crossings[stage - 1] if stage else ()
        outgoing = route.crossings[stage] if stage < len(cuts) else ()
        self.incoming, self.outgoing = incoming, outgoing
        self._wanted = {*incoming, *outgoing}
        self._wanted_calls = {value.call for value in self._wanted}
        self._kept: dict[ValueId, Tensor] = {}

    def made(self, tensor: Tensor, value: ValueId, name: str) -> None:
        """Keep what crosses a border of this stage."""
        if value in self._wanted:
            self._kept[value] = tensor

    def enter(self, gate: Gate, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Meet a block: it may begin this stage or the next one; it runs here, or its outcome is known."""
        if self._in_block:
            return call(*args, **kwargs)
        self.approach(gate)
        if self.is_open:
            return call(*args, **kwargs) if self.is_active else gate.call_bare(module, args, kwargs)
        if self.is_active:
            result = self._computed(gate, module, call, args, kwargs)
        else:
            result = self._known(gate, module, args, kwargs)
        label_block(self, gate, result, args, kwargs)
        return result

    def approach(self, gate: Gate) -> None:
        """A stage begins with its first block, or, where that is left out this time, with the next one."""
        while not self._in_block and self.segment < len(self.cuts) and gate.place >= self.cuts[self.segment]:
            self._cross()

    def _cross(self) -> None:
        self.segment += 1
        if self.digest != self.route.digests[self.segment - 1] and self.segment >= self.stage:
            raise StaleRouteError
        if self.segment == self.stage:
            self._take_over()
        elif self.segment == self.stage + 1:
            raise StageDoneError

    def _take_over(self) -> None:
        """What earlier stages made comes to be here, in whatever variable or list it lies."""
        with bare_function_calls():
            self._exchange()
        self.received = ()
        self.is_active = True

    def _exchange(self) -> None:
        for value, tensor in zip(self.incoming, self.received, strict=True):
            absent = self._kept.get(value)
            if absent is None or not is_absent(absent):
                raise StaleRouteError
            if (seen_shape(tensor), tensor.dtype) != (tuple(absent.shape), absent.dtype):
                raise _other_value(self.route.names[value], absent, tensor)
            become(absent, _writable(tensor), value)

    def _computed(self, gate: Gate, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        before = host_state()
        with self._paused():
            result = call(*args, **kwargs)
        if host_state() != before:
            raise LayoutError("parallel.stage_host_draws", block=gate.path)
        if any(is_absent(leaf) for leaf in list_outputs(result)):
            raise LayoutError("parallel.stage_absent_result", block=gate.path)
        known = self.memo.get(outcome_key(gate.signature, module, args, kwargs))
        if known is not None and known.is_assumed and not known.agrees_with(result):
            raise LayoutError("parallel.stage_not_as_assumed", block=gate.path)
        return result

    def _known(self, gate: Gate, module: nn.Module, args: Any, kwargs: Any) -> Any:
        known = self.memo.get(outcome_key(gate.signature, module, args, kwargs))
        if known is None:
            raise StaleRouteError
        count_unrun(module, known.draws)
        crosses = self.calls + 1 in self._wanted_calls
        return run_hooks(module, args, kwargs, known.build(self.absence, args, kwargs, reuses=not crosses))

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Leave a block that computes alone: no call in it is met."""
        popped = is_innermost(self)
        if popped:
            self.leave()
        self._in_block = True
        try:
            with self.aside():
                yield
        finally:
            self._in_block = False
            if popped:
                self.come_back()

    def to_send(self) -> tuple[Tensor, ...]:
        """Give what the next stage needs.

        Raises:
            LayoutError: A value was never made.
        """
        missing = [value for value in self.outgoing if value not in self._kept or is_absent(self._kept[value])]
        if missing:
            raise LayoutError("parallel.stage_absent_result", block=self.route.names[missing[0]])
        return tuple(self._kept[value] for value in self.outgoing)


def _writable(tensor: Tensor) -> Tensor:
    """A leaf can't be written to in place, and who gave it still wants its gradient."""
    if not tensor.is_leaf:
        return tensor
    alias = tensor.view_as(tensor)
    vars(alias).update(notes_of(tensor))
    return alias


def _other_value(name: str, expected: Tensor, found: Tensor) -> LayoutError:
    return LayoutError(
        "parallel.stage_other_value",
        name=name,
        expected=f"{list(expected.shape)} {expected.dtype}",
        found=f"{list(found.shape)} {found.dtype}",
    )
