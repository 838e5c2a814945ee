"""Gates: a block decides at its own door whether it runs, before any hook of it does.

The block's class is exchanged for a subclass of the same name, as FSDP2 does: no module is wrapped, so names,
``isinstance`` and attributes stay.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from trireme.interpret import inside

_GATE = "_trireme_gate"


class Keeper(Protocol):
    """Who is asked at a gate."""

    def enter(self, gate: Gate, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Answer a call of the module; ``call`` is the module's own."""


class Gate:
    """What stands at a block's door.

    Attributes:
        path: Of the block in the whole module.
        place: Of the block among all blocks.
        signature: Blocks with the same one give results of the same shapes for arguments of the same shapes.
    """

    def __init__(self, module: nn.Module, *, path: str, place: int, signature: int, keeper: Keeper) -> None:
        self.path = path
        self.place = place
        self.signature = signature
        self.keeper = keeper
        self.forward = module.__dict__.get("forward")

    def __deepcopy__(self, memo: Any) -> Gate:
        """A copy of a module is asked at the same gate."""
        return self

    def call_bare(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Run the block's code as it was when the gate was set: with people's hooks, without the sharding's."""
        forward = self.forward or type(module).forward.__get__(module)
        with inside(module):
            return call_with_hooks(module, forward, args, kwargs)


class _Gated(nn.Module):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        gate: Gate = self.__dict__[_GATE]
        return gate.keeper.enter(gate, self, super().__call__, args, kwargs)


_CLASSES: dict[type, type] = {}


def set_gate(module: nn.Module, gate: Gate) -> None:
    """Put a gate before a module."""
    kind = type(module)
    if kind not in _CLASSES:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        _CLASSES[kind] = type(kind.__name__, (_Gated, kind), names)
    module.__dict__[_GATE] = gate
    module.__class__ = _CLASSES[kind]


def gate_of(module: nn.Module) -> Gate | None:
    """Return a module's gate."""
    return module.__dict__.get(_GATE)


@contextmanager
def gated(gates: Iterable[tuple[nn.Module, Gate]]) -> Iterator[None]:
    """Put gates before modules for a while."""
    kept = [(module, module.__class__, gate) for module, gate in gates]
    try:
        for module, _, gate in kept:
            set_gate(module, gate)
        yield
    finally:
        for module, kind, _ in kept:
            module.__class__ = kind
            module.__dict__.pop(_GATE, None)


def call_with_hooks(module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a module with the hooks that people set; those of the sharding would gather what isn't needed."""
    for key, hook in _own(module._forward_pre_hooks):
        if key in module._forward_pre_hooks_with_kwargs:
            args, kwargs = hook(module, args, kwargs) or (args, kwargs)
        else:
            changed = hook(module, args)
            args = args if changed is None else changed if isinstance(changed, tuple) else (changed,)
    return run_hooks(module, args, kwargs, forward(*args, **kwargs))


def run_hooks(module: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
    """Show a result to the forward hooks that people set."""
    for key, hook in _own(module._forward_hooks):
        with_kwargs = key in module._forward_hooks_with_kwargs
        changed = hook(module, args, kwargs, result) if with_kwargs else hook(module, args, result)
        result = result if changed is None else changed
    return result


def _own(hooks: Mapping[int, Callable[..., Any]]) -> list[tuple[int, Callable[..., Any]]]:
    return [(key, hook) for key, hook in hooks.items() if not _is_sharding(hook)]


def _is_sharding(hook: Callable[..., Any]) -> bool:
    home = getattr(hook, "__module__", None) or type(hook).__module__
    return home.startswith("torch.distributed")


class RootKeeper(Protocol):
    """Who is asked when the whole module is called."""

    def enter_root(self, module: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Answer a call of the module; ``call`` is the module's own, with its hooks."""

    def run_root(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Answer a call of the module's forward, inside its hooks."""


_ROOT = "_trireme_root"
_ROOT_CLASSES: dict[type, type] = {}


def set_root_gate(module: nn.Module, keeper: RootKeeper) -> None:
    """Put a gate before a whole module and before its forward."""
    kind = type(module)
    if kind not in _ROOT_CLASSES:
        _ROOT_CLASSES[kind] = _root_class(kind)
    module.__dict__[_ROOT] = keeper
    module.__class__ = _ROOT_CLASSES[kind]


def _root_class(kind: Any) -> type:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        keeper: RootKeeper = self.__dict__[_ROOT]
        return keeper.enter_root(self, super(made, self).__call__, args, kwargs)

    @functools.wraps(kind.forward)  # people and libraries read the signature
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        keeper: RootKeeper = self.__dict__[_ROOT]
        return keeper.run_root(super(made, self).forward, args, kwargs)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    made: Any = type(kind.__name__, (kind,), {**names, "__call__": call, "forward": forward})
    return made  # type: ignore[no-any-return]
