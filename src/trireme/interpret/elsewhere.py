"""Draws that another rank makes: they are counted, so that later ones at the same place get the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from trireme.interpret.random_rule import RANDOM_RULES
from trireme.interpret.randomness import running_randomness
from trireme.interpret.torch_private import DisableTorchFunction

Draws = dict[tuple[bool, str], int]
"""How often a module's forward draws, by place: a path below the module (true) or one in the whole model (false)."""


def count_unmade(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Count a call that draws on the rank that makes it, and here doesn't."""
    running = running_randomness()
    if running is not None and _draws(function, args, kwargs):
        running.drawn[running.path] += 1


def drawn_so_far() -> Counter[str]:
    """Give how often was drawn at each place since this forward began."""
    running = running_randomness()
    return Counter() if running is None else running.drawn.copy()


def draws_since(before: Counter[str], module: nn.Module) -> Draws:
    """Give what a module's forward has drawn; ``before`` is what was counted when it began."""
    running = running_randomness()
    if running is None:
        return {}
    own = {running.path_of(each): path for path, each in module.named_modules()}
    more = running.drawn - before
    return {(path in own, own.get(path, path)): count for path, count in more.items()}


def count_unrun(module: nn.Module, draws: Draws) -> None:
    """Count the draws of a module that runs on another rank."""
    running = running_randomness()
    if running is None:
        return
    for (is_inside, path), count in draws.items():
        place = running.path_of(module.get_submodule(path)) if is_inside else path
        running.drawn[place or ""] += count


def is_counted(function: Callable[..., Any]) -> bool:
    """Whether what a function draws here and now is drawn by counting."""
    return running_randomness() is not None and function in RANDOM_RULES


@contextmanager
def inside(module: nn.Module) -> Iterator[None]:
    """Run a module's forward without calling the module; what it draws is counted as its own."""
    running = running_randomness()
    if running is None:
        yield
    else:
        with running.inside(module):
            yield


class _DrawsError(Exception):
    """A rule is about to draw."""


class _Probe:
    """Stands in for the randomness, to find out whether a rule draws."""

    def next_key(self) -> int:
        raise _DrawsError

    def __enter__(self) -> None:
        raise _DrawsError

    def __exit__(self, *error: object) -> None:
        return None

    def tell(self, key: str) -> None:
        return None


def _draws(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    rule = RANDOM_RULES.get(function)
    if rule is None:
        return False
    probe: Any = _Probe()
    try:
        with DisableTorchFunction():
            rule(probe, function, args, kwargs)
    except _DrawsError:
        return True
    return False
