"""Random numbers that Python and numpy draw in a forward, to decide what runs: alike wherever the forward runs.

Before a forward the generators are set from (seed, step), and afterwards they are what they were. So every rank,
stage and micro-batch of a step decides what one device decides once, and a program's own draws go on undisturbed.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from trireme.interpret.counter import stream_key

_WORD = 2**32


class HostGenerators:
    """Python's ``random``, numpy's, and the generators that a module keeps as attributes.

    Args:
        module: Whose attributes are searched.
        seed: The run's seed.
    """

    def __init__(self, module: nn.Module, *, seed: int) -> None:
        self._seed = seed
        self._kept = dict(_generators_of(module))

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Draw as every forward of this step does; afterwards everything is as it was."""
        before = self.states()
        self._set(step)
        try:
            yield
        finally:
            self.restore(before)

    def states(self) -> Mapping[str, Any]:
        """Give the state of every generator."""
        return {name: _access(each)[0]() for name, each in self._all()}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Put states back."""
        for name, each in self._all():
            _access(each)[1](states[name])

    @contextmanager
    def back_at(self, states: Mapping[str, Any]) -> Iterator[None]:
        """Draw again what was drawn from these states on; afterwards everything is as it was."""
        before = self.states()
        self.restore(states)
        try:
            yield
        finally:
            self.restore(before)

    def _set(self, step: int) -> None:
        for name, each in self._all():
            _access(each)[2](stream_key(self._seed, "host", name, step) % _WORD)

    def _all(self) -> Iterator[tuple[str, Any]]:
        yield "random", random
        yield "numpy", _numpy_random()
        yield from self._kept.items()


def host_state() -> tuple[Any, ...]:
    """Give the state of Python's and numpy's own generators, to see whether something has drawn from them."""
    name, keys, *rest = _numpy_random().get_state(legacy=True)
    return random.getstate(), name, keys.tobytes(), *rest


def _numpy_random() -> ModuleType:
    """Import numpy's generators: were they left until someone needs them, a first import would look like a draw."""
    return importlib.import_module("numpy.random")


def _generators_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    seen: set[int] = set()
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if _is_generator(value) and id(value) not in seen:
                seen.add(id(value))
                yield f"{path}.{name}", value


def _is_generator(value: Any) -> bool:
    if isinstance(value, (random.Random, torch.Generator)):
        return not isinstance(value, random.SystemRandom)
    numpy = _numpy_random()
    return isinstance(value, (numpy.RandomState, numpy.Generator))


def _access(generator: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]:
    """Give how a generator's state is read, put back, and made from a number."""
    if generator is random or isinstance(generator, random.Random):
        return generator.getstate, generator.setstate, generator.seed
    if isinstance(generator, torch.Generator):
        return generator.get_state, generator.set_state, generator.manual_seed
    if hasattr(generator, "bit_generator") and not isinstance(generator, ModuleType):
        return _access_new(generator.bit_generator)
    return generator.get_state, generator.set_state, generator.seed


def _access_new(bits: Any) -> tuple[Callable[[], Any], Callable[[Any], Any], Callable[[int], Any]]:
    def put(state: Any) -> None:
        bits.state = state

    return lambda: bits.state, put, lambda seed: put(type(bits)(seed).state)
