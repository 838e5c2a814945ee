"""One call of a block as a program of tensors alone: what it holds and what it is given in, what it returns out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import DATA_DEPENDENT, acting_for, drawn_so_far
from trireme.parallel.compile_private import FakeTensorMode, TorchDispatchMode, values_of
from trireme.parallel.compile_value import Arguments, travelling
from trireme.parallel.tracing_private import pytree

Place = tuple[str, dict[str, Any], str]
"""Name of a tensor in its block, and the mapping and key where it lies."""

_LIFTS = ("aten::lift_fresh", "aten::detach")


@dataclass(slots=True, kw_only=True)
class Result:
    """What a block returned: tensors that it made, tensors that it was given, other values.

    Attributes:
        spec: How the leaves nest.
        leaves: A number: of the tensor that the program gives; ``Given``: of one that the call gave; else the value.
        notes: Of each tensor that the program gives, what interpreters remember.
    """

    spec: Any = None
    leaves: list[Any] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    def build(self, made: Sequence[Any], given: Sequence[Tensor]) -> Any:
        """Give a call's result."""
        for tensor, notes in zip(made, self.notes, strict=True):
            for key, value in notes.items():
                setattr(tensor, key, value)
        leaves = [leaf.of(made, given) if isinstance(leaf, (Made, Given)) else leaf for leaf in self.leaves]
        return pytree.tree_unflatten(leaves, self.spec)


@dataclass(frozen=True, slots=True)
class Made:
    """A tensor that the program gives."""

    place: int

    def of(self, made: Sequence[Any], given: Sequence[Tensor]) -> Any:
        """Give it."""
        return made[self.place]


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor that the block handed through."""

    place: int

    def of(self, made: Sequence[Any], given: Sequence[Tensor]) -> Any:
        """Give it."""
        return given[self.place]


class Program(nn.Module):
    """A block's forward as a function of flat tensors, run under the interpreters that meet it."""

    def __init__(
        self,
        forward: Callable[..., Any],
        arguments: Arguments,
        places: Sequence[Place],
        held: Sequence[Tensor],
        *,
        around: Callable[[], AbstractContextManager[Any]],
        finish: Callable[[Any], Any],
    ) -> None:
        super().__init__()
        self._block_forward, self._arguments, self._places = forward, arguments, places
        self._around, self._finish = around, finish
        self._slots, self.tensors = _distinct([*held, *arguments.tensors])
        self._num_held = len(held)
        self.result = Result()

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """Run the block on tensors that stand for its own."""
        for stand_in, original in zip(flat, self.tensors, strict=True):
            for key, value in travelling(original).items():
                setattr(stand_in, key, value)
        everything = [flat[slot] for slot in self._slots]
        args, kwargs = self._arguments.rebuilt(everything[self._num_held :])
        with ExitStack() as stack:
            stack.callback(_put, self._places, [store[name] for _, store, name in self._places])
            _put(self._places, everything[: self._num_held])
            stack.enter_context(self._around())
            outputs = self._finish(self._block_forward(*args, **kwargs))
        return self._flat(outputs, flat)

    def _flat(self, outputs: Any, flat: Sequence[Tensor]) -> tuple[Tensor, ...]:
        leaves, spec = pytree.tree_flatten(outputs)
        given = {id(tensor): place for place, tensor in enumerate(flat)}
        made: dict[int, int] = {}
        tensors: list[Tensor] = []
        found: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, Tensor) and id(leaf) in given:
                found.append(Given(given[id(leaf)]))
            elif isinstance(leaf, Tensor):
                if id(leaf) not in made:
                    made[id(leaf)] = len(tensors)
                    tensors.append(leaf)
                found.append(Made(made[id(leaf)]))
            elif leaf is None or isinstance(leaf, (bool, int, float, str)):
                found.append(leaf)
            else:
                raise LayoutError("compile.returns", kind=type(leaf).__name__)
        self.result = Result(spec=spec, leaves=found, notes=[travelling(each) for each in tensors])
        return tuple(tensors)


def _put(places: Sequence[Place], tensors: Sequence[Any]) -> None:
    for (_, store, name), tensor in zip(places, tensors, strict=True):
        store[name] = tensor


def _distinct(tensors: Sequence[Tensor]) -> tuple[list[int], list[Tensor]]:
    """Give each tensor once, and for all of them which one it is."""
    known: dict[int, int] = {}
    kept: list[Tensor] = []
    for tensor in tensors:
        if id(tensor) not in known:
            known[id(tensor)] = len(kept)
            kept.append(tensor)
    return [known[id(tensor)] for tensor in tensors], kept


def rehearse(program: Program) -> str:
    """Run a program without numbers and give what it runs, so that alike blocks are known as such.

    Raises:
        LayoutError: It does what a program can't: look at values, draw random numbers, read a tensor that nobody gave.
    """
    before, mode = drawn_so_far(), FakeTensorMode()
    fakes = [mode.from_tensor(each) for each in program.tensors]
    watch = _Record(fakes)
    try:
        with mode, watch:
            program(*fakes)
    except DATA_DEPENDENT as error:
        raise LayoutError("compile.values", what=str(getattr(error, "func", type(error).__name__))) from error
    if drawn_so_far() != before:
        raise LayoutError("compile.draws")
    return watch.text(program.result)


class _Record(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down every operator with its numbers, and which tensors it takes."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lines: list[str] = [str([(*each.shape, each.dtype) for each in inputs])]
        self._alive: list[Any] = list(inputs)
        self._numbers = {id(each): place for place, each in enumerate(inputs)}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags and _dropout_of(func, args, kwargs or {}) != 0.0:
            raise LayoutError("compile.draws")
        given = pytree.tree_leaves((args, dict(kwargs or {})))
        lifts = func._schema.name in _LIFTS
        if not lifts and any(type(each) in (Tensor, nn.Parameter) for each in given):
            raise LayoutError("compile.foreign", what=str(func))
        result = func(*args, **(kwargs or {}))
        text = [self._number(each) if isinstance(each, Tensor) else repr(each) for each in given]
        made = [self._number(each) for each in pytree.tree_leaves(result) if isinstance(each, Tensor)]
        values = [values_of(each) for each in given if lifts and type(each) is Tensor]
        self._lines.append(f"{func} {text} {values} {made}")
        return result

    def _number(self, tensor: Tensor) -> str:
        if id(tensor) not in self._numbers:
            self._alive.append(tensor)
            self._numbers[id(tensor)] = len(self._numbers)
        return f"%{self._numbers[id(tensor)]}"

    def text(self, result: Result) -> str:
        """Give everything as one text."""
        return "\n".join([*self._lines, repr(result)])


def _dropout_of(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float | None:
    """Give how much an attention drops; None for whatever else draws."""
    names = [each.name for each in func._schema.arguments]
    if "dropout_p" not in names:
        return None
    place = names.index("dropout_p")
    given: float = args[place] if place < len(args) else kwargs.get("dropout_p", 0.0)
    return given


def settled(value: Any, summed: Mapping[str, Callable[[Tensor], Tensor]]) -> Any:
    """Make the sums that are still owed of what leaves or enters a block."""
    for axis, make in summed.items():
        with acting_for(axis):
            value = pytree.tree_map_only(Tensor, make, value)
    return value
