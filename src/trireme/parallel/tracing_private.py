"""What torch keeps to itself and running part of a forward needs: fake tensors, the mode stack, exchanging contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import _get_current_function_mode
from torch.utils import _pytree as pytree

from trireme.interpret import is_unseen

__all__ = [
    "DEPENDS_ON_DATA",
    "FakeTensor",
    "FakeTensorMode",
    "bare_function_calls",
    "exchange",
    "is_innermost",
    "pytree",
    "watched_functions",
]

DEPENDS_ON_DATA = (DataDependentOutputException, DynamicOutputShapeException)
"""What a fake tensor raises when code asks for its values."""


def exchange(first: Tensor, second: Tensor) -> None:
    """Let two tensor objects change places, so that everyone who holds the one holds the other.

    ``torch.utils.swap_tensors`` does so too, but refuses where a weak reference is held, as the fake mode does to
    all that it makes.
    """
    first.__class__, second.__class__ = second.__class__, first.__class__
    first.__dict__, second.__dict__ = second.__dict__, first.__dict__
    torch._C._swap_tensor_impl(first, second)


def is_innermost(mode: Any) -> bool:
    """Whether a function mode is the one that is asked first."""
    return _get_current_function_mode() is mode  # type: ignore[no-untyped-call]


def bare_function_calls() -> Any:
    """Give a context in which no function mode is asked."""
    return torch._C.DisableTorchFunction()


@contextmanager
def watched_functions(watch: Callable[[Callable[..., Any], Any, tuple[Any, ...]], Any]) -> Iterator[None]:
    """Give every ``torch.autograd.Function.apply`` to ``watch(before, function, args)``; no function mode sees them.

    ``before(function, *args)`` applies it as it was applied outside.
    """
    outer = _SingleLevelFunction.__dict__.get("apply")
    before = _apply if outer is None else outer.__func__

    def applied(cls: Any, *args: Any) -> Any:
        return before(cls, *args) if is_unseen() else watch(before, cls, args)

    # Below Function.apply, for people keep that method under a name of their own.
    _SingleLevelFunction.apply = classmethod(applied)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if outer is None:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        else:
            _SingleLevelFunction.apply = outer  # type: ignore[attr-defined]


def _apply(function: Any, *args: Any) -> Any:
    return super(_SingleLevelFunction, function).apply(*args)
