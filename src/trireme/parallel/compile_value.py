"""What decides whether a compiled block still fits a call: every argument and setting, each under a name."""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.parallel.compile_private import is_real
from trireme.parallel.value import notes_of

Facts = dict[str, Any]
"""By name of an argument or setting: what a compiled block takes as given."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum, type)
_BARE = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_DEPTH = 6


class Arguments:
    """The tensors of a call in order, and what else it says.

    Attributes:
        tensors: Each once.
        facts: Of everything.
    """

    def __init__(self, names: tuple[str, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self.facts: Facts = {}
        self._places: dict[int, int] = {}
        self.args, self.kwargs = args, kwargs
        for place, value in enumerate(args):
            self._note(names[place] if place < len(names) else f"argument {place}", value, 0)
        for name, value in kwargs.items():
            self._note(name, value, 0)

    def rebuilt(self, tensors: list[Tensor]) -> tuple[Any, Any]:
        """Give the arguments with other tensors in place of these; objects are copied, the caller's stay so."""
        by_id = {id(old): new for old, new in zip(self.tensors, tensors, strict=True)}
        return _replaced(self.args, by_id), _replaced(dict(self.kwargs), by_id)

    def _note(self, name: str, value: Any, depth: int) -> None:
        if isinstance(value, Tensor):
            self.facts[name] = self._tensor(name, value)
        elif isinstance(value, _PLAIN):
            self.facts[name] = value
        elif isinstance(value, (list, tuple)):
            self.facts[name] = (type(value), len(value))
            for place, each in enumerate(value):
                self._note(f"{name}[{place}]", each, depth + 1)
        elif isinstance(value, dict):
            self.facts[name] = (type(value), tuple(value))
            for key, each in value.items():
                self._note(f"{name}[{key!r}]", each, depth + 1)
        elif callable(value):
            self.facts[name] = _Known(value)
        elif hasattr(value, "__dict__") and depth < _DEPTH:
            self.facts[name] = (type(value), tuple(vars(value)))
            for key, each in vars(value).items():
                self._note(f"{name}.{key}", each, depth + 1)
        else:
            raise LayoutError("compile.argument", name=name, kind=type(value).__name__)

    def _tensor(self, name: str, tensor: Tensor) -> Any:
        known = self._places.get(id(tensor))
        if known is not None:
            return ("same", known)
        if not is_real(tensor):
            raise LayoutError("compile.argument", name=name, kind=type(tensor).__name__)
        self._places[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        return describe_tensor(tensor)


class _Known:
    """A function or module among the arguments: it is the same as long as it is that very object."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return getattr(self.value, "__qualname__", type(self.value).__name__)


def describe_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """Give what of a tensor is built into a program."""
    notes = tuple(sorted(travelling(tensor).items()))
    return (tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad, notes)


def travelling(tensor: Tensor) -> dict[str, Any]:
    """Give what interpreters remember about a tensor and has to be remembered about its stand-in."""
    return {key: value for key, value in notes_of(tensor).items() if not isinstance(value, Tensor)}


def _replaced(value: Any, by_id: Mapping[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return by_id[id(value)]
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, dict):
        return type(value)({key: _replaced(each, by_id) for key, each in value.items()})
    if isinstance(value, (list, tuple)):
        changed = [_replaced(each, by_id) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    if callable(value):
        return value
    copy = object.__new__(type(value))
    vars(copy).update({key: _replaced(each, by_id) for key, each in vars(value).items()})
    return copy


def names_of(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Give the names of what a forward takes by place."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(name for name, each in inspect.signature(forward).parameters.items() if each.kind in kinds)


class Holdings:
    """What a block holds: tensors, which are a program's inputs too, and settings, which are built into it."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._size = -1
        self._read_tree()

    def _read_tree(self) -> None:
        self._parts = list(self._block.named_modules())
        self._size = self._measure()
        self._tensors: list[tuple[str, dict[str, Any], str]] = []
        self._settings: list[tuple[str, dict[str, Any], str]] = []
        for path, part in self._parts:
            prefix = f"{path}." if path else ""
            for store in (part._parameters, part._buffers):
                self._tensors += [(prefix + name, store, name) for name, value in store.items() if value is not None]
            for name, value in vars(part).items():
                if name in _BARE or name.startswith("_trireme"):
                    continue
                place = (prefix + name, vars(part), name)
                if isinstance(value, Tensor):
                    self._tensors.append(place)
                elif isinstance(value, (*_PLAIN, list, tuple, dict)):
                    self._settings.append(place)

    def _measure(self) -> int:
        return sum(len(vars(part)) + len(part._parameters) + len(part._buffers) for _, part in self._parts)

    def read(self) -> tuple[list[tuple[str, dict[str, Any], str]], list[Tensor], Facts]:
        """Give where each tensor lies, the tensors, and the facts about all."""
        if self._measure() != self._size:
            self._read_tree()
        tensors = [store[name] for _, store, name in self._tensors]
        facts: Facts = {path: describe_tensor(each) for (path, _, _), each in zip(self._tensors, tensors, strict=True)}
        facts |= {path: _frozen(store[name]) for path, store, name in self._settings}
        facts["training"] = tuple(part.training for _, part in self._parts)
        return self._tensors, tensors, facts

    def check(self) -> None:
        """Refuse what a program wouldn't do.

        Raises:
            LayoutError: Hooks inside, or a module that keeps a second list of its parameters.
        """
        for path, part in self._parts:
            if path and any(getattr(part, name) for name in _HOOKS):
                raise LayoutError("compile.hooks", module=path)
            if isinstance(part, nn.RNNBase):
                raise LayoutError("compile.recurrent", module=path or type(part).__name__)


def _frozen(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(_frozen, value))
    if isinstance(value, dict):
        return ("dict", *((key, _frozen(each)) for key, each in value.items()))
    return value if isinstance(value, _PLAIN) else _Known(value)


def difference(before: Facts, now: Facts) -> tuple[str, str, str]:
    """Name the first fact that differs, and what it was and is."""
    for name in (*now, *before):
        if before.get(name) != now.get(name) or (name in before) != (name in now):
            return name, *_worded(before.get(name), now.get(name))
    return "", "", ""


def _worded(before: Any, now: Any) -> tuple[str, str]:
    """Give of two facts what differs, shapes first."""
    if isinstance(before, tuple) and isinstance(now, tuple) and len(before) == len(now) == 6:
        for first, second in zip(before, now, strict=True):
            if first != second:
                return str(first), str(second)
    return str(before), str(now)
