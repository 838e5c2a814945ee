"""Blocks compiled one by one, under every interpreter that meets them.

A block's forward is traced on this rank's shards with the interpreters entered inside, so that what is compiled is the
local program: kernels, and the collectives between them. Whatever stands around a block (recomputation, gathers of
ZeRO, gates of a pipeline) stays as it is, for stages may be left half-way and a program may not.

A program holds for what it was traced with. Every argument and setting is compared at each call; another one gets a
program of its own, and the report says which and why. What can't be a program runs as written, and that is said too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.errors import LayoutError, TriremeError
from trireme.interpret import CollectiveCount, in_backward, unseen
from trireme.parallel.compile_private import (
    Backend,
    Compiled,
    collectives_traced,
    compile_graph,
    compiling,
    graph_only,
    is_watched,
    without_function_modes,
)
from trireme.parallel.compile_trace import Program, Result, rehearse, settled
from trireme.parallel.compile_value import Arguments, Facts, Holdings, difference, names_of
from trireme.parallel.surroundings import Surroundings
from trireme.parallel.unit import Forward, wrap_forward
from trireme.words import say

_T = TypeVar("_T")

Compile = Literal["none", "block", "trace"]
"""``trace`` runs the traced program as it is: the same numbers as compiled, without a compiler."""

MAX_PROGRAMS = 8
"""Of one block. Lengths that change from batch to batch cost more to compile than they give."""

_BACKENDS: Mapping[str, Backend] = {"block": compile_graph, "trace": graph_only}


@dataclass(slots=True, kw_only=True)
class CompileReport:
    """What became of compiling.

    Attributes:
        num_programs: Compiled, each for all blocks alike.
        compile_s: How long that took, kernels from the cache on disk included.
        recompiles: One sentence for each program after a block's first: what differed.
        eager: By path of a block that runs as written: why.
    """

    num_programs: int = 0
    compile_s: float = 0.0
    recompiles: list[str] = field(default_factory=list)
    eager: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A compiled program and what belongs to it."""

    run: Compiled
    result: Result
    counts: Sequence[tuple[CollectiveCount, CollectiveCount, CollectiveCount]]

    def count(self) -> None:
        """Count the collectives that this run, and its backward, make."""
        for count, forward, backward in self.counts:
            for part in (forward,) if in_backward() else (forward, backward):
                count.calls.update(part.calls)
                count.num_bytes.update(part.num_bytes)


class BlockCompiler:
    """Compiles the blocks of one model on one rank.

    Args:
        kind: What is made of a block.
        surroundings: The interpreters that meet the blocks.
        groups: Ranks that must all compile a block or none, for its program holds collectives between them.
        needs_inside: Says while a forward runs that values inside of blocks are wanted.
        notice: Told of what runs as written.
    """

    def __init__(
        self,
        kind: Compile,
        *,
        surroundings: Surroundings,
        device: torch.device,
        groups: Sequence[dist.ProcessGroup] = (),
        needs_inside: Callable[[], bool] = lambda: False,
        notice: Callable[[str], None],
    ) -> None:
        self.report = CompileReport()
        self.surroundings, self.groups, self.needs_inside = surroundings, tuple(groups), needs_inside
        self._backend = _BACKENDS[kind]
        self.device = device
        self._notice = notice
        self._programs: dict[Any, _Ready] = {}
        self._told: set[str] = set()

    def wrap(self, path: str, block: nn.Module) -> None:
        """Have a block compiled at its next call; wrap it before anything that stands around it."""

        def compiled(forward: Forward) -> Forward:
            made = _CompiledForward(self, path, block, forward)
            return lambda *args, **kwargs: made.run(args, kwargs)

        wrap_forward(block, compiled)

    def refuse(self, path: str, reason: str) -> None:
        """Note that a block runs as written; each reason is told once."""
        self.report.eager[path] = reason
        if reason not in self._told:
            self._told.add(reason)
            self._notice(say("compile.eager", path=path, reason=reason))

    def note_again(self, path: str, why: str) -> None:
        """Note, and tell, that a block needed one more program."""
        report = self.report
        sentence = say("compile.again", path=path, why=why)
        report.recompiles.append(sentence)
        programs = say("compile.so_far", count=report.num_programs, seconds=f"{report.compile_s:.1f}")
        self._notice(f"{sentence} ({programs})")

    def build(self, program: Program, facts: Facts) -> _Ready | None:
        """Give a program compiled, or one that is there already; None where another rank can't.

        Raises:
            LayoutError: This one can't; the others know by then.
        """
        started_s = time.perf_counter()
        with _ready_to_trace(), self._uncounted() as counted:
            text = self._agreed(lambda: rehearse(program))
            forward = counted()
            if text is None:
                return None
            key = (text, facts["autocast"], facts["grad"])
            known = self._programs.get(key)
            run = self._agreed(lambda: known.run if known is not None else self._compiled(program))
            if run is None:
                return None
            backward = counted(only="backward")
        counts = tuple(zip(self._counts(), forward, backward, strict=True))
        ready = known or _Ready(run=run, result=program.result, counts=counts)
        if known is None:
            self._programs[key] = ready
            self.report.num_programs += 1
            self.report.compile_s += time.perf_counter() - started_s
        return ready

    def _compiled(self, program: Program) -> Compiled:
        try:
            return self._backend(program, program.tensors)
        except TriremeError:
            raise
        except Exception as error:
            raise LayoutError("compile.failed", cause=_first_line(error)) from error

    def _agreed(self, make: Callable[[], _T]) -> _T | None:
        """Make something if every rank can, for programs hold collectives between them."""
        made, failure = None, None
        try:
            made = make()
        except LayoutError as error:
            failure = error
        fits = torch.tensor(int(failure is None), device=self.device)
        for group in self.groups:
            _REDUCE(fits, op=dist.ReduceOp.MIN, group=group)
        if failure is not None:
            raise failure
        return made if fits else None

    def _counts(self) -> list[CollectiveCount]:
        bindings = (self.surroundings.binding, self.surroundings.context)
        return [each.count for each in bindings if each is not None]

    @contextmanager
    def _uncounted(self) -> Iterator[Callable[..., list[CollectiveCount]]]:
        """Count what is traced by itself: tracing sends nothing."""
        counts = self._counts()
        before = [(count, count.calls.copy(), count.num_bytes.copy()) for count in counts]

        def counted(*, only: str = "") -> list[CollectiveCount]:
            return [
                CollectiveCount(calls=_only(count.calls - calls, only), num_bytes=_only(count.num_bytes - sizes, only))
                for count, calls, sizes in before
            ]

        try:
            yield counted
        finally:
            for count, calls, sizes in before:
                for mine, old in ((count.calls, calls), (count.num_bytes, sizes)):
                    mine.clear()
                    mine.update(old)


@contextmanager
def _ready_to_trace() -> Iterator[None]:
    with without_function_modes(), collectives_traced(), compiling():
        yield


_REDUCE = dist.all_reduce
"""Torch's own, also while the public name gives operators of a graph."""


class _CompiledForward:
    """A block's forward: a program where one fits, else as written."""

    def __init__(self, compiler: BlockCompiler, path: str, block: nn.Module, forward: Forward) -> None:
        self.compiler, self.path, self.block, self.forward = compiler, path, block, forward
        self.names = names_of(forward)
        self.holdings = Holdings(block)
        self.ready: list[tuple[Facts, _Ready]] = []
        self.is_refused = False

    def run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Answer a call."""
        if self.is_refused or torch.is_inference_mode_enabled():
            return self.forward(*args, **kwargs)
        try:
            if is_watched():
                self._refuse(LayoutError("compile.watched"))
            if self.compiler.needs_inside():
                self._refuse(LayoutError("compile.inside"))
            return self._run(args, kwargs)
        except _AsWrittenError:
            return self.forward(*args, **kwargs)

    def _run(self, args: Any, kwargs: Any) -> Any:
        args, kwargs = self._settled((args, kwargs))
        with unseen():
            try:
                arguments = Arguments(self.names, args, kwargs)
            except LayoutError as error:
                self._refuse(error)
            places, held, facts = self.holdings.read()
            facts |= arguments.facts
            facts["grad"], facts["autocast"] = torch.is_grad_enabled(), _autocast(self.compiler.device)
        ready = next((each for known, each in self.ready if known == facts), None)
        if ready is None:
            ready = self._built(arguments, places, held, facts)
        flat = _each_once([*held, *arguments.tensors])
        ready.count()
        with unseen():
            made = ready.run(*flat)
            return ready.result.build(made, flat)

    def _built(self, arguments: Arguments, places: Any, held: list[Tensor], facts: Facts) -> _Ready:
        if len(self.ready) >= MAX_PROGRAMS:
            self._refuse(LayoutError("compile.too_many", count=MAX_PROGRAMS, what=self._why(facts)))
        program = Program(
            self.forward,
            arguments,
            places,
            held,
            around=self.compiler.surroundings.traced,
            finish=self._settled,
        )
        num_before = self.compiler.report.num_programs
        try:
            self.holdings.check()
            ready = self.compiler.build(program, facts)
        except LayoutError as error:
            self._refuse(error)
        if ready is None:
            self._refuse(LayoutError("compile.elsewhere"))
        with unseen():
            changed = [name for name, value in self.holdings.read()[2].items() if facts.get(name) != value]
        if changed:
            self._refuse(LayoutError("compile.changes", name=changed[0]))
        if self.ready and self.compiler.report.num_programs > num_before:
            self.compiler.note_again(self.path, self._why(facts))
        self.ready.append((facts, ready))
        return ready

    def _settled(self, value: Any) -> Any:
        binding = self.compiler.surroundings.binding
        return value if binding is None else settled(value, {"tp": binding.interpreter.summed})

    def _why(self, facts: Facts) -> str:
        name, before, now = difference(self.ready[-1][0], facts)
        return say("compile.differs", name=name, before=before, now=now)

    def _refuse(self, error: LayoutError) -> NoReturn:
        self.is_refused = True
        self.compiler.refuse(self.path, str(error))
        raise _AsWrittenError


class _AsWrittenError(Exception):
    """This call runs as written."""


def _autocast(device: torch.device) -> Any:
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type)


def _each_once(tensors: Sequence[Tensor]) -> list[Tensor]:
    return list({id(each): each for each in tensors}.values())


def _only(counter: Counter[str], ending: str) -> Counter[str]:
    return Counter({kind: number for kind, number in counter.items() if kind.endswith(ending)})


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".strip()
