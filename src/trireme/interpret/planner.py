"""Decide how a module's parameters are cut for tensor parallelism, by running its own forward on fake tensors.

The rules that will run are the rules that plan. Where one can't keep a tensor sharded, the weights responsible are
cut differently (a fused matrix within its parts, in whole heads) or left whole, and the module is walked again.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError, TriremeError
from trireme.interpret.call import Call
from trireme.interpret.collective import CollectiveCount, Line
from trireme.interpret.context import ContextInterpreter, mark_sequences
from trireme.interpret.interpreter import Interpreter
from trireme.interpret.knowledge import Knowledge, Wish, parameter_dim
from trireme.interpret.opaque import OpaqueDims
from trireme.interpret.place import place_of
from trireme.interpret.pointwise import pointwise
from trireme.interpret.split import CannotSplitError, Shard, Split
from trireme.interpret.table import RULES
from trireme.interpret.tensor_plan import ParameterSplit, TensorPlan
from trireme.interpret.tensor_state import (
    Origin,
    as_input,
    is_input,
    map_tensors,
    origin_of,
    shard_of,
    sources_of,
    tensors_in,
    with_origin,
    with_shard,
)
from trireme.interpret.thin import followed_name, thinned
from trireme.interpret.token_shard import TokenPlace, place_of_tokens
from trireme.interpret.torch_private import FakeTensorMode, is_hollow
from trireme.interpret.unknown import UnknownValueError
from trireme.words import say

_MAX_PASSES = 200

_LONG = 64
_LARGE_SHARE = 1e-4
"""A dim and a parameter (as a part of all) from which on collectives along the cut dim are worth it: vocabularies are
above (0.14 % in a model of 671 G parameters), routers over experts below (0.003 % in one of 7 G)."""


def plan_tensor_parallel(
    module: nn.Module,
    example_inputs: Mapping[str, Any],
    *,
    degree: int,
    loss_fn: Callable[[Any], Tensor] | None = None,
    call: Callable[[nn.Module, Mapping[str, Any]], Any] | None = None,
    sequence_parallel: bool = False,
) -> TensorPlan:
    """Give how each parameter is cut over ``degree`` ranks; neither module nor inputs change.

    Args:
        module: Plain, on any device or meta.
        example_inputs: What ``forward`` takes, by name; a short batch will do.
        degree: Ranks of the axis.
        loss_fn: From the outputs to the loss. Without it outputs must be whole, so the head is.
        call: How the module is called with the inputs. Default: each under its name.
        sequence_parallel: Whether norms, dropout and residual sums between the cut matrices work on shares of the
            positions, wherever it is found which dim counts them.

    Raises:
        LayoutError: No way was found to run the module on shards.
    """
    knowledge = Knowledge(module=module, degree=degree)
    with thinned(module, knowledge.stacks) as stands_for:
        try:
            found = (
                _found(knowledge, example_inputs, loss_fn, call, sequence_parallel=sequence_parallel)
                if stands_for
                else None
            )
        except LayoutError:
            # Code that counts on every layer (by index, a result of each) is walked through as it is.
            found = None
    if found is None:
        knowledge, stands_for = Knowledge(module=module, degree=degree), {}
        found = _found(knowledge, example_inputs, loss_fn, call, sequence_parallel=sequence_parallel)
    return _plan(found, stands_for)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The walk that changed nothing more, and how many it took."""

    walk: _Walk
    passes: int
    tokens_stopped: str | None


def _found(
    knowledge: Knowledge,
    example_inputs: Mapping[str, Any],
    loss_fn: Callable[[Any], Tensor] | None,
    call: Callable[[nn.Module, Mapping[str, Any]], Any] | None,
    *,
    sequence_parallel: bool,
) -> _Found:
    opaque: OpaqueDims = {}
    for number in range(1, _MAX_PASSES + 1):
        walk = _Walk(knowledge, opaque, call=call)
        if not _walks_through(walk, example_inputs, loss_fn):
            continue
        if walk.cuts == knowledge.preset:
            stopped = _find_token_places(walk, example_inputs) if sequence_parallel else None
            return _Found(walk=walk, passes=number, tokens_stopped=stopped)
        knowledge.preset = dict(walk.cuts)
    raise LayoutError("interpret.too_many_passes", passes=_MAX_PASSES)


def _walks_through(walk: _Walk, inputs: Mapping[str, Any], loss_fn: Callable[[Any], Tensor] | None) -> bool:
    """Walk once; False if something was learned that asks for another walk."""
    module = walk.knowledge.module
    try:
        walk.run(inputs, loss_fn)
    except _AgainError:
        return False
    except CannotSplitError as error:
        if not walk.knowledge.learn(error, walk.cuts):
            raise _no_way(module, say(error.key, **error.values), error) from error
        return False
    except UnknownValueError as error:
        raise _no_way(module, say("interpret.unknown_value", what=error.what), error) from error
    except TriremeError:
        raise
    except Exception as error:
        raise _no_way(module, say("interpret.failed", error=f"{type(error).__name__}: {error}"), error) from error
    return True


def _find_token_places(walk: _Walk, inputs: Mapping[str, Any]) -> str | None:
    """Walk once more with the positions of the inputs cut on an axis of their own, to see where they come out.

    Returns:
        What ended the walk early, if anything did: sums after that go whole to all ranks, which is as right.
    """
    again = _Walk(walk.knowledge, walk.opaque, call=walk.call)
    line = Line(rank=0, degree=2, group=None, count=CollectiveCount())
    tracker = ContextInterpreter(line, kind="allgather", balanced=False, notice=_unheard)
    several = {name: _two_sequences(value) for name, value in inputs.items()}
    try:
        marked = mark_sequences(tracker, several)
        with tracker:
            again.run(marked, None)
    except Exception as error:
        if isinstance(error, LayoutError) and error.key == "interpret.no_sequence":
            raise LayoutError("interpret.no_sequence_sp", names=", ".join(inputs)) from error
        # Outputs may be cut; they are where this walk ends.
        at_the_end = isinstance(error, CannotSplitError) and error.key == "interpret.output"
        return None if at_the_end else f"{type(error).__name__}: {error}"
    finally:
        walk.token_places = again.token_places
    return None


def _two_sequences(value: Any) -> Any:
    """Repeat the only sequence of a batch, or one dim of all tokens couldn't be told from one of positions."""
    alone = isinstance(value, Tensor) and value.ndim >= 2 and value.shape[0] == 1
    return torch.cat((value, value)) if alone else value


def _no_way(module: nn.Module, what: str, error: Exception) -> LayoutError:
    place = place_of(error.__traceback__, module)
    return LayoutError("interpret.no_way", what=" ".join(what.split()), module=place.module, line=place.line)


class _AgainError(Exception):
    """A parameter was decided on after something had read it whole; the next pass knows from the start."""


class _Walk:
    """One pass through the module; the interpreter asks it how to cut."""

    def __init__(
        self,
        knowledge: Knowledge,
        opaque: OpaqueDims,
        *,
        call: Callable[[nn.Module, Mapping[str, Any]], Any] | None = None,
    ) -> None:
        self.knowledge, self.opaque, self.call = knowledge, opaque, call
        self.cuts: dict[str, tuple[int, Split]] = {}
        self.cuts_outputs = False
        self.tables: dict[int, set[str]] = {}
        self.names: dict[int, str] = {}
        self.token_places: dict[str, TokenPlace] = {}
        self._fakes: dict[str, Tensor] = {}
        self._local: dict[int, Tensor] = {}
        self._fake_mode = FakeTensorMode(allow_non_fake_inputs=True)

    def run(self, inputs: Mapping[str, Any], loss_fn: Callable[[Any], Tensor] | None) -> None:
        """Walk through module and loss.

        Parameters and buffers are fake, inputs are themselves: code may look at masks and document numbers, which
        decide what runs, and what is made of them meets a parameter as a fake.
        """
        module = self.knowledge.module
        line = Line(rank=0, degree=self.knowledge.degree, group=None, count=CollectiveCount())
        with _swapped(module, lambda value, name: self._fake(self._fake_mode, value, name)):
            for name, (dim, split) in self.knowledge.preset.items():
                self._cut(name, dim, split)
            given = map_tensors(dict(inputs), lambda value: as_input(value.detach().clone()))
            interpreter = Interpreter(line, opaque=self.opaque, decider=self, notice=_unheard)
            interpreter.tables = _Several()
            with torch.enable_grad(), interpreter:
                outputs = module(**given) if self.call is None else self.call(module, given)
                self.cuts_outputs = bool(sources_of(*_leaves(outputs)))
                result = outputs if loss_fn is None else loss_fn(outputs)
        if sources_of(*_leaves(result)):
            raise CannotSplitError("interpret.output", sources=sources_of(*_leaves(result)))

    def _fake(self, fake_mode: FakeTensorMode, value: Tensor, name: str) -> Tensor:
        is_bare = value.is_meta or is_hollow(value)
        with fake_mode:
            known = torch.empty(value.shape, dtype=value.dtype) if is_bare else value.detach()
        fake = known if is_bare else fake_mode.from_tensor(known)
        if isinstance(value, nn.Parameter):
            fake = fake.requires_grad_(value.requires_grad)
            with_origin(fake, Origin(name=name, dims=tuple(range(value.ndim))))
            self._fakes[name] = fake
            self.names[id(value)] = name
        return fake

    def resolve(self, value: Any) -> Any:
        """Give arguments with decided parameters as local shards."""
        return map_tensors(value, lambda tensor: self._local.get(id(tensor), tensor))

    def share(self, tensor: Tensor, dim: int, split: Split) -> Tensor | None:
        """Cut the parameter behind a tensor as its partner is cut."""
        place = self._place(tensor, dim)
        if place is None or place[0] in self.cuts or not self.knowledge.allows(*place):
            return None
        self.knowledge.how[place[0]] = "interpret.by_partner"
        return self._decided(tensor, *place, split)

    def column(self, tensor: Tensor, dim: int) -> Tensor | None:
        """Cut the parameter behind a tensor along a dim that shows in the result."""
        place = self._place(tensor, dim)
        if place is None or place[0] in self.cuts:
            return None
        split = self.knowledge.split(*place, tensor.shape[dim])
        if split is None:
            return None
        self.knowledge.how[place[0]] = "interpret.by_column"
        return self._decided(tensor, *place, split)

    def fused(self, tensor: Tensor, dim: int, segments: tuple[int, ...], grain: int) -> Tensor | None:
        """Cut a parameter whose parts are known."""
        place = self._place(tensor, dim)
        if place is not None:
            key = (self.knowledge.kind(place[0]), place[1])
            self.knowledge.wishes.setdefault(key, Wish(segments=segments, grain=grain))
        return self.column(tensor, dim)

    def has_table(self, width: int) -> bool:
        """Whether a table of rows this long is cut by rows already."""
        return width in self.tables

    def note_table(self, table: Tensor) -> None:
        """Note that a table is cut by rows."""
        shard = shard_of(table)
        if shard is not None:
            self.tables.setdefault(table.shape[1], set()).update(shard.sources)

    def note_sum(self, names: frozenset[str], result: Tensor) -> None:
        """Note which dim of partial sums counts positions."""
        place = place_of_tokens(result)
        if place is not None:
            self.token_places.update(dict.fromkeys(names, place))

    def pays_across(self, shard: Shard) -> bool:
        """Whether what caused a shard is large: a vocabulary, where a router over experts isn't."""
        sizes = [math.prod(self._fakes[name].shape) for name in shard.sources if name in self._fakes]
        return shard.split.total >= _LONG and max(sizes, default=0) >= _LARGE_SHARE * self.knowledge.num_elements

    def _place(self, tensor: Tensor, dim: int) -> tuple[str, int] | None:
        origin = origin_of(tensor)
        if origin is None:
            return None
        behind = parameter_dim(self._fakes[origin.name], origin.dims, tensor, dim)
        return None if behind is None else (origin.name, behind)

    def _decided(self, tensor: Tensor, name: str, dim: int, split: Split) -> Tensor:
        if tensor is not self._fakes[name]:
            self.knowledge.preset[name] = (dim, split)
            raise _AgainError
        return self._cut(name, dim, split)

    def _cut(self, name: str, dim: int, split: Split) -> Tensor:
        fake = self._fakes[name]
        shape = list(fake.shape)
        shape[dim] = split.length(0)
        with self._fake_mode:  # contents that mean nothing must not answer what code asks of them
            local = torch.empty(shape, dtype=fake.dtype, device=fake.device, requires_grad=fake.requires_grad)
        with_shard(local, Shard(dim=dim, split=split, sources=frozenset({name})))
        self._local[id(fake)] = local
        self.cuts[name] = (dim, split)
        return local

    def follow(self, call: Call, result: Any) -> None:
        """Note which parameter a plain view shows, and which integers come from the inputs."""
        first = next(tensors_in(call.args), None)
        if first is not None and origin_of(first) is None and isinstance(result, Tensor):
            first = next((each for each in tensors_in(call.args) if origin_of(each) is not None), first)
        if not isinstance(result, Tensor) or first is None or result is first:
            return
        if is_input(first) and not result.is_floating_point() and not first.is_floating_point():
            as_input(result)
        origin = origin_of(first)
        dims = None if origin is None else _followed(call, first, origin.dims, result)
        if origin is not None and dims is not None and shard_of(result) is None:
            with_origin(result, Origin(name=origin.name, dims=dims))


def _broadcast_dims(tensor: Tensor, dims: tuple[int | None, ...], result: Tensor) -> tuple[int | None, ...]:
    return (*[None] * (result.ndim - tensor.ndim), *dims)


def _moved(tensor: Tensor, order: Callable[[Tensor], Tensor], dims: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Find where dims went, by sending numbered lengths the same way."""
    probe = order(torch.empty([place + 2 for place in range(tensor.ndim)], device="meta"))
    return tuple(None if size == 1 else dims[size - 2] for size in probe.shape)


def _followed(
    call: Call, tensor: Tensor, dims: tuple[int | None, ...], result: Tensor
) -> tuple[int | None, ...] | None:
    """Give the dims that a view of a parameter shows, for the views that weights are read through."""
    last = tensor.ndim
    if call.function in RULES and RULES[call.function] is pointwise:
        # What depends on a dim element by element is cut when the parameter is.
        return _broadcast_dims(tensor, dims, result)
    match call.name:
        case "t" | "T" | "mT" | "transpose" | "swapaxes" | "permute" | "movedim" | "unsqueeze" if last >= 1:
            return _moved(tensor, lambda probe: call.function(probe, *call.args[1:], **call.kwargs), dims)
        case "view" | "reshape" | "unflatten" | "expand":
            return _kept_at_the_end(tensor, dims, result)
        case "embedding":
            return (*[None] * (result.ndim - 1), dims[-1])
        case "to" | "float" | "double" | "bfloat16" | "half" | "contiguous" | "type_as":
            return dims
        case "__getitem__" if isinstance(call.args[1], Tensor) and not call.args[1].is_floating_point():
            return (*[None] * call.args[1].ndim, *dims[1:])
        case _:
            return None


def _kept_at_the_end(tensor: Tensor, dims: tuple[int | None, ...], result: Tensor) -> tuple[int | None, ...] | None:
    """Give the last dims that a view leaves as they are."""
    kept = 0
    while kept < min(tensor.ndim, result.ndim) and tensor.shape[-1 - kept] == result.shape[-1 - kept]:
        kept += 1
    return (*[None] * (result.ndim - kept), *dims[tensor.ndim - kept :]) if kept else None


class _Several(dict[int, int]):
    """More tables than any model has: how many there are is known when the walk is over."""

    def get(self, key: int, default: Any = None) -> Any:
        return sys.maxsize


def _unheard(sentence: str) -> None:
    """Planning gathers nothing, so nothing is told."""


def _leaves(value: Any) -> Sequence[Tensor]:
    if isinstance(value, Mapping):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in _leaves(each)]
    return [value] if isinstance(value, Tensor) else []


@contextmanager
def _swapped(module: nn.Module, change: Callable[[Tensor, str], Tensor]) -> Iterator[None]:
    """Put changed tensors in place of parameters and buffers, tied ones once, and put all back."""
    kept: list[tuple[dict[str, Any], str, Tensor]] = []
    changed: dict[int, Tensor] = {}
    try:
        for prefix, owner in module.named_modules():
            for table in (owner._parameters, owner._buffers):
                for name, value in list(table.items()):
                    if value is None:
                        continue
                    kept.append((table, name, value))
                    if id(value) not in changed:
                        changed[id(value)] = change(value, f"{prefix}.{name}" if prefix else name)
                    table[name] = changed[id(value)]
        yield
    finally:
        for table, name, value in kept:
            table[name] = value


def _plan(found: _Found, stands_for: Mapping[str, str]) -> TensorPlan:
    walk = found.walk
    module = walk.knowledge.module
    tokens: dict[str, TokenPlace] = {}
    first: dict[int, str] = {}
    ties: dict[str, str] = {}
    parameters: dict[str, ParameterSplit] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        original = first.setdefault(id(parameter), name)
        if original != name:
            ties[name] = original
        decided = walk.names.get(id(parameter)) or followed_name(original, stands_for)
        parameters[name] = _parameter(walk, decided, tuple(parameter.shape))
        if decided in walk.token_places:
            tokens[name] = walk.token_places[decided]
    return TensorPlan(
        degree=walk.knowledge.degree,
        parameters=parameters,
        ties=ties,
        opaque=dict(walk.opaque),
        passes=found.passes,
        cuts_outputs=walk.cuts_outputs,
        tables={width: len(names) for width, names in walk.tables.items()},
        tokens=tokens,
        tokens_stopped=found.tokens_stopped,
    )


def _parameter(walk: _Walk, name: str, shape: tuple[int, ...]) -> ParameterSplit:
    if name not in walk.cuts:
        denied = walk.knowledge.denied.get(walk.knowledge.kind(name))
        return ParameterSplit(shape=shape, dim=None, split=None, reason=denied or say("interpret.never_cut"))
    dim, split = walk.cuts[name]
    reason = say(walk.knowledge.how.get(name, "interpret.by_partner"))
    return ParameterSplit(shape=shape, dim=dim, split=split, reason=reason)
