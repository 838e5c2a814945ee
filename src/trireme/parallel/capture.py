"""One run of a module on absent tensors: where it can be cut, which parameters each piece reads, what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import assumed_answer, is_hollow
from trireme.parallel.absent import Absence
from trireme.parallel.block import find_blocks
from trireme.parallel.flop import FlopCount
from trireme.parallel.gate import Gate, gated
from trireme.parallel.keep import Attributes
from trireme.parallel.memo import Outcome, signature_of
from trireme.parallel.trace import Memo, SideOutputError, Trace, refuse_data, users_line
from trireme.parallel.tracing_private import DEPENDS_ON_DATA
from trireme.parallel.value import set_free
from trireme.parallel.walk import depends
from trireme.plan import balance_cuts

Call = Callable[[nn.Module, Mapping[str, Tensor]], Any]
"""How a module is called with a batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost:
    """What one interval costs for the example batch; a parameter is counted where it is read first."""

    flops: int
    parameter_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A value that is made before a border and needed behind it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTrace:
    """What one run told. Interval 0 stands before the first block, interval i begins where ``blocks[i - 1]`` does.

    Attributes:
        blocks: Paths of the modules where a stage may begin, in the order in which they are first called.
        ties: Further names of a parameter to its first one.
        reads: For each parameter (first name), the intervals that read it; none for one that is never read.
        costs: Of every interval.
        crossings: For each border (before interval 1, 2 ...), what crosses it.
        is_open: Whether blocks give values by other ways than their results, so that none can be skipped unseen.
        assumed: Blocks whose code asks for values, which are supposed to give what they get.
        states: Buffers written in one interval and read in a later one, as (name, from, to).
        statistics: Buffers that keep something of activations, which a cut batch would make another thing.
        carried: Attributes in which a forward leaves activations that the next one reads.
        numbers: Attributes whose plain value a forward changes, each with its owner.
        branches: Lines of code between blocks that ask for values of activations; an answer was assumed.
    """

    blocks: tuple[str, ...]
    ties: Mapping[str, str]
    reads: Mapping[str, tuple[int, ...]]
    costs: tuple[BlockCost, ...]
    crossings: tuple[tuple[Crossing, ...], ...]
    is_open: bool = False
    assumed: tuple[str, ...] = ()
    states: tuple[tuple[str, int, int], ...] = ()
    statistics: tuple[str, ...] = ()
    carried: tuple[str, ...] = ()
    numbers: tuple[tuple[nn.Module, str], ...] = ()
    branches: tuple[str, ...] = ()


def capture(module: nn.Module, example: Mapping[str, Any], *, call: Call, assumes: bool = False) -> ModelTrace:
    """Run the module once without computing; neither module nor example changes.

    Args:
        module: Plain, on any device or meta.
        example: A batch, of any size.
        call: How the module is called with it.
        assumes: Whether to go on with an assumed answer where code between the blocks asks for values.

    Raises:
        LayoutError: Code between the blocks asks for values that parameters made.
    """
    before = Attributes(module)
    walking = _Walking(module=module, example=example, call=call, assumes=assumes)
    try:
        _, told = walking.walk()
        kept = before.changed()
        carried: tuple[str, ...] = ()
        if activations := {id(tensor): name for name, tensor in kept.tensors.items() if depends(tensor)}:
            again, _ = walking.walk(watched=activations)
            carried = tuple(again.reused)
    finally:
        before.restore()
    return replace(told, carried=carried, numbers=kept.numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walking:
    """How a module is walked through."""

    module: nn.Module
    example: Mapping[str, Any]
    call: Call
    assumes: bool
    absence: Absence = field(default_factory=Absence)

    def walk(self, watched: Mapping[int, str] = MappingProxyType({})) -> tuple[_Capture, ModelTrace]:
        """Walk once; ``watched`` are tensors of which to learn whether they are read."""
        try:
            return self._walked(watched, is_open=False)
        except SideOutputError:
            return self._walked(watched, is_open=True)

    def _walked(self, watched: Mapping[int, str], *, is_open: bool) -> tuple[_Capture, ModelTrace]:
        module = self.module
        with _twins(module, self.absence) as names, FlopCount() as count:
            held = held_tensors(module)
            trace = _Capture(self.absence, {}, names=names, count=count, is_open=is_open, held=held)
            trace.assumes, trace.watched = self.assumes, watched
            paths = dict.fromkeys(find_blocks(module))
            gates = [_gate(module, path, place, trace) for place, path in enumerate(paths)]
            with ExitStack() as stack:
                stack.enter_context(gated(gates))
                stack.enter_context(torch.enable_grad())
                stack.enter_context(trace)
                try:
                    trace.finish(self.call(module, _example(self.example)))
                except DEPENDS_ON_DATA as error:
                    raise refuse_data(error, is_open=is_open) from error
        return trace, trace.told(module)


def _gate(module: nn.Module, path: str, place: int, trace: _Capture) -> tuple[nn.Module, Gate]:
    block = module.get_submodule(path)
    return block, Gate(block, path=path, place=place, signature=signature_of(block), keeper=trace)


def _example(example: Mapping[str, Any]) -> dict[str, Any]:
    """The batch on the host, where absent tensors are."""
    return {
        key: value.detach().cpu() if isinstance(value, Tensor) and not value.is_meta else value
        for key, value in example.items()
    }


_NEARLY_ONE = 0.999


class _Capture(Trace):
    """A trace that also notes reads and costs."""

    def __init__(self, absence: Absence, memo: Memo, *, names: dict[int, list[str]], count: FlopCount, **options: Any):
        super().__init__(absence, memo, **options)
        self.names = names
        self.flop_count = count
        self.reads: dict[str, set[int]] = {}
        self.flops: list[int] = []
        self._begun_flops = 0
        self._read_inside: set[str] = set()
        self.assumes = False
        self.branches: dict[str, None] = {}

    def meet(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str) -> Any:
        """Go on with an assumed answer where values are asked for between blocks."""
        try:
            return super().meet(func, args, kwargs, name=name)
        except DEPENDS_ON_DATA:
            answer = assumed_answer(name, args) if self.assumes and self.block is None else None
            if answer is None:
                raise
            self.branches[users_line()] = None
            return answer

    def _begin(self, path: str) -> None:
        self._close_interval()
        super()._begin(path)

    def _close_interval(self) -> None:
        self.flops.append(self.flop_count.flops - self._begun_flops)
        self._begun_flops = self.flop_count.flops

    def use(self, tensor: Tensor) -> None:
        """Note who reads a parameter."""
        super().use(tensor)
        names = self.names.get(id(tensor))
        if names is None:
            return
        self.reads.setdefault(names[0], set()).add(self.interval)
        if self.block is not None:
            prefix = f"{self.block}."
            self._read_inside.add(next((name for name in names if name.startswith(prefix)), names[0]))

    def common_number(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Tensor | None:
        """A layer is left out where a small number is drawn; here none is."""
        drawn = super().common_number(func, args, kwargs)
        return drawn.fill_(_NEARLY_ONE) if drawn is not None and drawn.is_floating_point() else drawn

    def walked(self, gate: Gate, outcome: Outcome) -> None:
        """Keep for alike blocks what this one has read and cost."""
        prefix = f"{gate.path}."
        outcome.inner_reads = frozenset(
            name.removeprefix(prefix) for name in self._read_inside if name.startswith(prefix)
        )
        outcome.outer_reads = frozenset(name for name in self._read_inside if not name.startswith(prefix))
        outcome.flops = self.flop_count.flops - self._begun_flops
        self._read_inside = set()

    def skipped(self, gate: Gate, outcome: Outcome) -> None:
        """An alike block reads and costs the same."""
        self.flop_count.flops += outcome.flops
        first = {name: names[0] for names in self.names.values() for name in names}
        for name in {f"{gate.path}.{inner}" for inner in outcome.inner_reads} | outcome.outer_reads:
            self.reads.setdefault(first.get(name, name), set()).add(self.interval)

    def told(self, module: nn.Module) -> ModelTrace:
        """Give what the run told."""
        self._close_interval()
        reads = {names[0]: tuple(sorted(self.reads.get(names[0], ()))) for names in self.names.values()}
        return ModelTrace(
            blocks=tuple(self.entered),
            ties={name: names[0] for names in self.names.values() for name in names[1:]},
            reads=reads,
            costs=self._costs(module, reads),
            crossings=tuple(self._crossings(border) for border in range(len(self.entered))),
            is_open=self.is_open,
            assumed=tuple(self.assumed),
            states=tuple(self.states),
            statistics=tuple(self.statistics),
            branches=tuple(self.branches),
        )

    def _costs(self, module: nn.Module, reads: Mapping[str, tuple[int, ...]]) -> tuple[BlockCost, ...]:
        held = [0] * len(self.flops)
        for name, parameter in module.named_parameters():
            intervals = reads.get(name)
            if intervals:
                held[intervals[0]] += parameter.numel() * parameter.element_size()
        return tuple(BlockCost(flops=flops, parameter_bytes=size) for flops, size in zip(self.flops, held, strict=True))

    def _crossings(self, border: int) -> tuple[Crossing, ...]:
        lives = [life for life in self.lives.values() if life.made <= border < life.used]
        return tuple(Crossing(name=life.name, shape=life.meta.shape, dtype=life.meta.dtype) for life in lives)


def choose_cuts(trace: ModelTrace, *, num_stages: int) -> tuple[str, ...]:
    """Give the block with which each stage after the first begins, so that the dearest stage is as cheap as can be.

    Raises:
        LayoutError: There are fewer places to cut than stages need.
    """
    places = _places(trace)
    if num_stages == 1:
        return ()
    if num_stages > len(places):
        raise LayoutError("parallel.stage_few_cuts", stages=num_stages, most=len(places), blocks=_named(trace))
    weights = [cost.flops for cost in trace.costs]
    if not any(weights):
        weights = [cost.parameter_bytes for cost in trace.costs]
    ends = [*places[1:], len(weights)]
    costs = [float(sum(weights[start:end])) for start, end in zip(places, ends, strict=True)]
    return tuple(trace.blocks[places[cut] - 1] for cut in balance_cuts(costs, num_stages=num_stages))


def _places(trace: ModelTrace) -> list[int]:
    """The intervals with which a stage may begin; before the first block stands a stage only if that holds weights."""
    crossed = {interval for _, first, last in trace.states for interval in range(first + 1, last + 1)}
    allowed = [interval for interval in range(1, len(trace.costs)) if interval not in crossed]
    if allowed and trace.costs[0].parameter_bytes == 0:
        allowed = allowed[1:]
    return [0, *allowed]


def _named(trace: ModelTrace) -> str:
    return ", ".join(trace.blocks[:3]) + (" ..." if len(trace.blocks) > 3 else "") if trace.blocks else "-"


def held_tensors(module: nn.Module) -> dict[int, str]:
    """Give the names of the tensors that a module keeps from one forward to the next, parameters apart."""
    held: dict[int, str] = {}
    for path, each in module.named_modules():
        for name, value in [*each._buffers.items(), *vars(each).items()]:
            if isinstance(value, Tensor):
                held.setdefault(id(value), f"{path}.{name}" if path else name)
    return held


@contextmanager
def _twins(module: nn.Module, absence: Absence) -> Iterator[dict[int, list[str]]]:
    """Put absent twins in place of parameters, tied ones once, and bring buffers to where the twins are."""
    kept: list[tuple[dict[str, Any], str, Any]] = []
    twins: dict[Any, Tensor] = {}
    names: dict[int, list[str]] = {}
    host = torch.empty(0).cpu().device
    try:
        for path, owner in module.named_modules():
            for name, value in [*owner._parameters.items()]:
                if value is not None:
                    key = storage_key(value)
                    if key not in twins:
                        twins[key] = absence.parameter(value, device=host, differentiates=True)
                    names.setdefault(id(twins[key]), []).append(f"{path}.{name}" if path else name)
                    _put(owner._parameters, name, twins[key], kept)
            for name, value in [*owner._buffers.items()]:
                if value is not None and value.device != host:
                    _put(owner._buffers, name, _host_buffer(value, absence, host), kept)
            refresh_flat_weights(owner)
        yield names
    finally:
        for table, name, value in kept:
            table[name] = value
        for owner in module.modules():
            refresh_flat_weights(owner)


def _put(table: dict[str, Any], name: str, value: Tensor, kept: list[tuple[dict[str, Any], str, Any]]) -> None:
    kept.append((table, name, table[name]))
    table[name] = value


def _host_buffer(value: Tensor, absence: Absence, host: torch.device) -> Tensor:
    if value.is_meta:
        return set_free(absence.make(value.shape, None, dtype=value.dtype, device=host))
    return value.detach().to(host)


def storage_key(parameter: Tensor) -> Any:
    """Give what tied parameters have in common: one object, or one place in memory."""
    if parameter.is_meta or is_hollow(parameter) or parameter.layout != torch.strided:
        return id(parameter)
    place = (parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.dtype)
    return place if parameter.numel() else id(parameter)


def refresh_flat_weights(module: nn.Module) -> None:
    """Recurrent layers of torch keep a second list of their parameters."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [getattr(module, name) for name in module._flat_weights_names]
