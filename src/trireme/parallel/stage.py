"""The stages that one rank runs, over the one module it holds."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.mesh import choose_device
from trireme.parallel.absent import Absence
from trireme.parallel.capture import Call, ModelTrace, held_tensors, refresh_flat_weights
from trireme.parallel.gate import Gate, call_with_hooks, set_gate, set_root_gate
from trireme.parallel.memo import signature_of
from trireme.parallel.route import Route, batch_key, check_states, route_of
from trireme.parallel.run import StageDoneError, StageRun, StaleRouteError
from trireme.parallel.trace import Memo, SideOutputError, Trace, refuse_data
from trireme.parallel.tracing_private import DEPENDS_ON_DATA
from trireme.parallel.value import is_absent, tensors_in


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOutput:
    """What a stage made: what the next one needs, or, after the last one, what the module returned."""

    to_send: tuple[Tensor, ...]
    outputs: Any = None


class StageSet:
    """Runs single stages of an unmodified module and holds only the parameters that they read.

    Parameters of other stages become absent at once: they take no memory, and neither ``named_parameters`` nor
    ``state_dict`` shows them. One that several stages read (an embedding and a head that are tied) is held by each.

    Attributes:
        owned_names: Names of the parameters held here, tied ones under each of their names.
        around: Gives the context of the forward with a number; a mode that meets calls has to stand outside of this
            room's own.
    """

    def __init__(
        self,
        module: nn.Module,
        trace: ModelTrace,
        *,
        cuts: Sequence[str],
        stages: Sequence[int],
        num_stages: int,
        call: Call,
        device: torch.device | None = None,
    ) -> None:
        """Cut the module.

        Args:
            module: Plain; not yet sharded.
            trace: Of the same module.
            cuts: Path of the block with which each stage after the first begins.
            stages: Those of this rank.
            num_stages: Of all ranks.
            call: How the module is called with a batch.
            device: Where it will compute, for a module on meta. Default: where its tensors are.

        Raises:
            LayoutError: The cuts aren't blocks in order, or a buffer would have to be handed on.
        """
        check_cuts(trace, cuts, num_stages=num_stages)
        self.module, self.trace, self.call = module, trace, call
        self.cuts, self.stages, self.num_stages = tuple(cuts), tuple(stages), num_stages
        self.is_open = trace.is_open
        self.absence = Absence()
        self.walk: Trace | StageRun | None = None
        self.around: Callable[[int], AbstractContextManager[object]] = nullcontext
        self._memo: Memo = {}
        self._routes: dict[Any, Route] = {}
        self._twins: dict[str, Tensor] = {}
        self._twin_finder = _TwinFinder(module, self._twins)
        self._with_absent: set[int] = set()
        self._held: dict[int, str] | None = None
        self.readers = {name: self._readers(name) for name in self._first_names()}
        self.owned_names = tuple(name for name, _ in module.named_parameters(remove_duplicate=False))
        self._places = [trace.blocks.index(cut) for cut in cuts]
        if num_stages > 1:
            self._cut(device or _device_of(module))

    def _first_names(self) -> list[str]:
        return [name for name, _ in self.module.named_parameters()]

    def _readers(self, name: str) -> tuple[int, ...]:
        """The stages that hold a parameter; one that nobody reads goes with the block it lies in, or to the first."""
        starts = [self.trace.blocks.index(cut) + 1 for cut in self.cuts]
        intervals = self.trace.reads.get(name) or (self._home(name),)
        return tuple(sorted({sum(start <= interval for start in starts) for interval in intervals}))

    def _home(self, name: str) -> int:
        homes = (place + 1 for place, block in enumerate(self.trace.blocks) if name.startswith(f"{block}."))
        return next(homes, 0)

    def _cut(self, device: torch.device) -> None:
        for place, path in enumerate(self.trace.blocks):
            block = self.module.get_submodule(path)
            set_gate(block, Gate(block, path=path, place=place, signature=signature_of(block), keeper=self))
        self._drop_unowned(device)
        set_root_gate(self.module, self)

    def _drop_unowned(self, device: torch.device) -> None:
        owned = []
        for path, owner in self.module.named_modules():
            for name, parameter in [*owner._parameters.items()]:
                if parameter is None:
                    continue
                full = f"{path}.{name}" if path else name
                first = self.trace.ties.get(full, full)
                twin = self._twins.setdefault(first, self._twin(first, parameter, device))
                self._twins[full] = twin
                if set(self.readers[first]) & set(self.stages):
                    owned.append(full)
                else:
                    del owner._parameters[name]
                    owner.__dict__[name] = twin
                    self._with_absent.add(id(owner))
            refresh_flat_weights(owner)
        self.owned_names = tuple(owned)

    def _twin(self, first: str, parameter: Tensor, device: torch.device) -> Tensor:
        known = self._twins.get(first)
        if known is not None:
            return known
        return self.absence.parameter(parameter, device=device if parameter.is_meta else parameter.device)

    def enter(self, gate: Gate, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Answer at a block's gate."""
        if self.walk is None:
            self._check_here(module)
            if any(is_absent(tensor) for tensor in tensors_in(args, kwargs)):
                raise LayoutError("parallel.stage_recomputed", block=gate.path)
            return call(*args, **kwargs)
        return self.walk.enter(gate, module, call, args, kwargs)

    def enter_root(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Answer at the whole module's gate: a trace must not wake the sharding's hooks."""
        if self.walk is None:
            self._check_here(module)
            return call(*args, **kwargs)
        if isinstance(self.walk, Trace):
            return call_with_hooks(module, module.forward, args, kwargs)
        result = call(*args, **kwargs)
        if self.walk.is_done:
            raise StageDoneError
        return result

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run the whole module's forward; hooks behind it see what leaves the stage."""
        if not isinstance(self.walk, StageRun):
            return forward(*args, **kwargs)
        try:
            return forward(*args, **kwargs)
        except StageDoneError:
            self.walk.is_done = True
            return self.walk.to_send()

    def _check_here(self, module: nn.Module) -> None:
        if any(id(part) in self._with_absent for part in module.modules()):
            raise LayoutError("parallel.stage_outside")

    def forward(
        self, stage: int, batch: Mapping[str, Any], received: Sequence[Tensor] = (), *, number: int = 0
    ) -> StageOutput:
        """Run one stage.

        Args:
            stage: One of this rank's.
            batch: The whole micro-batch, the same for every stage.
            received: What the stage before gave ``to_send``, in that order; the tensors are used up.
            number: The same for every stage of this forward, another one for other forwards; numbers that code
                draws to decide what to run follow from it.

        Raises:
            LayoutError: The forward can't be run in parts.
        """
        if self.num_stages == 1:
            return StageOutput(to_send=(), outputs=self.call(self.module, batch))
        key = batch_key(self.module, batch)
        route = self._routes.get(key)
        if route is None:
            route = self._routes[key] = self._trace(batch, number)
        try:
            return self._run(stage, batch, received, route, number)
        except StaleRouteError:
            pass
        try:
            return self._run(stage, batch, received, self._trace(batch, number), number)
        except StaleRouteError:
            raise LayoutError("parallel.stage_unsteady", stage=stage) from None

    def stage_of(self, module: nn.Module) -> int | None:
        """Give the one stage of this rank that reads a module's parameters; None if several do."""
        members = {id(each) for each in module.modules()}
        names = (
            f"{path}.{name}" if path else name
            for path, owner in self.module.named_modules()
            if id(owner) in members
            for name, parameter in owner._parameters.items()
            if parameter is not None
        )
        stages = {stage for name in names for stage in self.readers[self.trace.ties.get(name, name)]}
        own = stages & set(self.stages)
        return own.pop() if len(own) == 1 else None

    def route(self, batch: Mapping[str, Any], *, number: int = 0) -> Route:
        """Give what crosses the borders for batches of this kind."""
        key = batch_key(self.module, batch)
        if key not in self._routes:
            self._routes[key] = self._trace(batch, number)
        return self._routes[key]

    def _trace(self, batch: Mapping[str, Any], number: int) -> Route:
        try:
            trace = self._traced(batch, number)
        except SideOutputError:
            self.is_open = True
            trace = self._traced(batch, number)
        return route_of(trace, blocks=self.trace.blocks, cuts=self.cuts)

    def _traced(self, batch: Mapping[str, Any], number: int) -> Trace:
        trace = Trace(self.absence, self._memo, is_open=self.is_open, **self._options(number))
        with self._walking(trace, number):
            trace.finish(self.call(self.module, _aliases(batch)))
        return trace

    def _run(
        self, stage: int, batch: Mapping[str, Any], received: Sequence[Tensor], route: Route, number: int
    ) -> StageOutput:
        run = StageRun(
            self.absence,
            self._memo,
            stage=stage,
            cuts=self._places,
            route=route,
            received=received,
            is_open=self.is_open,
            **self._options(number),
        )
        with self._walking(run, number):
            try:
                outputs = self.call(self.module, _aliases(batch))
            except StageDoneError:
                return StageOutput(to_send=run.to_send())
        if run.segment != stage or stage != self.num_stages - 1:
            raise LayoutError("parallel.stage_not_entered", block=self.cuts[run.segment])
        return StageOutput(to_send=(), outputs=outputs)

    def _options(self, number: int) -> dict[str, Any]:
        seed = torch.initial_seed() + 1_000_003 * number
        if self._held is None:
            self._held = held_tensors(self.module)
        return {"held": self._held, "twin_of": self._twin_finder, "seed": seed}

    @contextmanager
    def _walking(self, walk: Any, number: int) -> Iterator[None]:
        self.walk = walk
        try:
            with self.around(number), walk:
                yield
        except DEPENDS_ON_DATA as error:
            raise refuse_data(error, is_open=self.is_open) from error
        finally:
            self.walk = None


class _TwinFinder:
    """Finds the absent twin of a parameter by its name: sharding puts other objects under it."""

    def __init__(self, module: nn.Module, twins: Mapping[str, Tensor]) -> None:
        self._module, self._twins = module, twins
        self._found: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}

    def __call__(self, parameter: nn.Parameter) -> Tensor:
        known = self._found.get(id(parameter))
        if known is None or known[0]() is not parameter:
            named = self._module.named_parameters(remove_duplicate=False)
            self._found = {id(each): (weakref.ref(each), self._twins[name]) for name, each in named}
        return self._found[id(parameter)][1]


def check_cuts(trace: ModelTrace, cuts: Sequence[str], *, num_stages: int) -> None:
    """Refuse cuts that aren't blocks in the order in which they run, or that part what belongs together.

    Raises:
        LayoutError: They are so.
    """
    for cut in cuts:
        if cut not in trace.blocks:
            raise LayoutError("parallel.stage_no_block", block=cut, blocks=", ".join(trace.blocks) or "-")
    places = [trace.blocks.index(cut) + 1 for cut in cuts]
    if len(cuts) != num_stages - 1 or places != sorted(set(places)):
        raise LayoutError("parallel.stage_bad_cuts", cuts=", ".join(cuts) or "-", stages=num_stages)
    check_states(trace.states, starts=places, cuts=cuts)


def _device_of(module: nn.Module) -> torch.device:
    tensors = (*module.parameters(), *module.buffers())
    return next((tensor.device for tensor in tensors if not tensor.is_meta), None) or choose_device()


def _aliases(batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch under other tensor objects: a walk may put absent tensors in the place of those it is given."""
    return {
        key: value.detach() if isinstance(value, Tensor) and not value.requires_grad else value
        for key, value in batch.items()
    }
