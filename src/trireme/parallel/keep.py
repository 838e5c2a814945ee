"""What a module's attributes keep from one forward to the next, besides parameters and buffers.

Numbers that count forwards are put back, so that the many forwards of a step count as the one that they are on one
device. Activations that the next forward reads can't be had in parts, and are found so that they can be refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trireme.interpret import is_hollow
from trireme.parallel.tracing_private import FakeTensor

_OWN = frozenset(vars(nn.Module()))
_PLAIN = (bool, int, float, str, type(None))
_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a forward has changed.

    Attributes:
        tensors: New tensors, by name.
        numbers: Owner and name of attributes with another plain value.
    """

    tensors: Mapping[str, Tensor]
    numbers: tuple[tuple[nn.Module, str], ...]


class Attributes:
    """The attributes of a module and its parts as they are now."""

    def __init__(self, module: nn.Module) -> None:
        self._owners = [(path, owner, dict(_attributes(owner))) for path, owner in module.named_modules()]
        self._inner = [(each, _content(each)) for _, _, held in self._owners for each in _containers(held.values())]
        self._known = {id(tensor) for _, _, held in self._owners for _, tensor in _tensors("", held)}

    def changed(self) -> Kept:
        """Give what is another by now."""
        tensors: dict[str, Tensor] = {}
        numbers: list[tuple[nn.Module, str]] = []
        for path, owner, before in self._owners:
            now = dict(_attributes(owner))
            for name, tensor in _tensors(path, now):
                if id(tensor) not in self._known:
                    tensors[name] = tensor
            for name, value in now.items():
                old = before.get(name)
                if isinstance(value, _PLAIN) and isinstance(old, _PLAIN) and value != old:
                    numbers.append((owner, name))
        return Kept(tensors=tensors, numbers=self._alike(numbers))

    def _alike(self, numbers: list[tuple[nn.Module, str]]) -> tuple[tuple[nn.Module, str], ...]:
        """Add the same attributes of modules of the same class: a walk leaves out blocks like those it knows."""
        kinds = {(type(owner), name) for owner, name in numbers}
        return tuple(
            (owner, name)
            for _, owner, held in self._owners
            for kind, name in kinds
            if type(owner) is kind and isinstance(held.get(name), _PLAIN)
        )

    def restore(self) -> None:
        """Make numbers what they were, and forget what has no numbers; other news (hooks were set up) stays."""
        for container, content in self._inner:
            if any(_is_bare(tensor) for _, tensor in _tensors("", {"": container})):
                _refill(container, content)
        for _, owner, before in self._owners:
            for name, value in list(_attributes(owner)):
                if any(_is_bare(tensor) for _, tensor in _tensors("", {name: value})):
                    del owner.__dict__[name]
                elif not (name in before and _counts(name, value)):
                    continue
                if name in before:
                    owner.__dict__[name] = before[name]


@contextmanager
def attributes_kept(module: nn.Module) -> Iterator[None]:
    """Leave no trace of walks through a module in its attributes."""
    before = Attributes(module)
    try:
        yield
    finally:
        before.restore()


class KeptNumbers:
    """Plain attributes that a forward changes: every forward of a step begins with what the step began with."""

    def __init__(self, places: tuple[tuple[nn.Module, str], ...]) -> None:
        self._places = places
        self._values: list[Any] = []

    def start(self) -> None:
        """Begin a step."""
        self._values = [getattr(owner, name, None) for owner, name in self._places]

    def go_back(self) -> None:
        """Begin a forward."""
        for (owner, name), value in zip(self._places, self._values, strict=False):
            owner.__dict__[name] = value


def _is_bare(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor) and not is_hollow(tensor)


def _counts(name: str, value: Any) -> bool:
    """Whether an attribute is a number or switch of the user's; libraries note under private names what they set up."""
    return isinstance(value, (int, float)) and not (isinstance(value, bool) and name.startswith("_"))


def _attributes(owner: nn.Module) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if name not in _OWN and not name.startswith("_trireme") and not isinstance(value, nn.Module):
            yield name, value


def _content(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _refill(container: Any, content: Any) -> None:
    now = container.values() if isinstance(container, dict) else container
    then = content.values() if isinstance(content, dict) else content
    if len(now) == len(then) and all(one is other for one, other in zip(now, then, strict=True)):
        return
    container.clear()
    (container.update if isinstance(container, (dict, set)) else container.extend)(content)


def _containers(values: Any, depth: int = _DEPTH) -> Iterator[Any]:
    for value in values:
        for each in _opened(value):
            if hasattr(each, "clear"):
                yield each
            if depth:
                yield from _containers(each.values() if isinstance(each, Mapping) else each, depth - 1)


def _tensors(path: str, values: Mapping[str, Any], depth: int = _DEPTH) -> Iterator[tuple[str, Tensor]]:
    for name, value in values.items():
        place = f"{path}.{name}" if path else str(name)
        if isinstance(value, Tensor):
            yield place, value
        elif depth:
            for each in _opened(value):
                inner = each if isinstance(each, Mapping) else dict(enumerate(each))
                yield from _tensors(place, {str(key): one for key, one in inner.items()}, depth - 1)


def _opened(value: Any) -> Iterator[Any]:
    """Give what holds the parts of a value: itself, or the attributes of an object that isn't a class or module."""
    if type(value).__module__ in ("builtins", "collections"):
        if isinstance(value, (list, tuple, dict, set)) or type(value).__name__ in ("deque", "OrderedDict"):
            yield value
    elif not isinstance(value, (nn.Module, Tensor, type)) and isinstance(getattr(value, "__dict__", None), dict):
        yield value.__dict__
