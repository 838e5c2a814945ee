"""What torch keeps to itself and running part of a forward needs: fake tensors, the mode stack, exchanging contents."""

from __future__ import annotations

import logging
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
from torch.autograd.function import BackwardCFunction, _SingleLevelFunction
from torch.overrides import _get_current_function_mode
from torch.utils import _pytree as pytree
from torch.utils import checkpoint

from trireme.interpret import is_unseen

__all__ = [
    "DEPENDS_ON_DATA",
    "FakeTensor",
    "FakeTensorMode",
    "bare_function_calls",
    "call_node",
    "exchange",
    "hooks_noted",
    "input_shape",
    "is_innermost",
    "memory_key",
    "pytree",
    "quiet_fakes",
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


@contextmanager
def quiet_fakes() -> Iterator[None]:
    """Keep fake tensors from logging what fails; whoever catches the error says it in one line."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    was = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was


def memory_key(tensor: Tensor) -> int:
    """Give what tensors that share memory have in common as long as one of them lives, fake ones too."""
    return int(tensor.untyped_storage()._cdata)


def is_innermost(mode: Any) -> bool:
    """Whether a function mode is the one that is asked first."""
    return _get_current_function_mode() is mode  # type: ignore[no-untyped-call]


def bare_function_calls() -> Any:
    """Give a context in which no function mode is asked."""
    return torch._C.DisableTorchFunction()


@contextmanager
def watched_functions(
    watch: Callable[[Callable[..., Any], Any, tuple[Any, ...]], Any], approach: Callable[[Any], None]
) -> Iterator[None]:
    """Show what no function mode sees.

    Every ``torch.autograd.Function.apply`` goes to ``watch(before, function, args)``, where ``before(function,
    *args)`` applies it as it was applied outside. ``approach`` is told what torch's recomputation is about to run.
    """
    generator: Any = checkpoint._checkpoint_without_reentrant_generator
    outer = _SingleLevelFunction.__dict__.get("apply")
    before = _apply if outer is None else outer.__func__

    def applied(cls: Any, *args: Any) -> Any:
        return before(cls, *args) if is_unseen() else watch(before, cls, args)

    def recomputed(function: Any, *rest: Any, **options: Any) -> Any:
        approach(function)
        return generator(function, *rest, **options)

    checkpoint._checkpoint_without_reentrant_generator = recomputed  # type: ignore[assignment]
    # Below Function.apply, for people keep that method under a name of their own.
    _SingleLevelFunction.apply = classmethod(applied)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        checkpoint._checkpoint_without_reentrant_generator = generator
        if outer is None:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        else:
            _SingleLevelFunction.apply = outer  # type: ignore[attr-defined]


@contextmanager
def hooks_noted(hooked: set[Any]) -> Iterator[None]:
    """Note the nodes of the graph whose gradient somebody asks to see, or to change, by ``Tensor.register_hook``."""
    before = Tensor.register_hook

    def register(tensor: Tensor, hook: Any) -> Any:
        if tensor.grad_fn is not None:
            hooked.add(tensor.grad_fn)
        return before(tensor, hook)  # type: ignore[no-untyped-call]

    Tensor.register_hook = register  # type: ignore[method-assign]
    try:
        yield
    finally:
        Tensor.register_hook = before  # type: ignore[method-assign]


def _apply(function: Any, *args: Any) -> Any:
    return super(_SingleLevelFunction, function).apply(*args)


def input_shape(node: Any, place: int) -> tuple[int, ...]:
    """Give the shape of the gradient that a node of the graph takes at a place."""
    return tuple(node._input_metadata[place].shape)


def call_node(node: Any, gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
    """Run one node of the graph by itself; what it gives isn't reduced to the shapes that the next nodes take."""
    if isinstance(node, BackwardCFunction):
        metadata: Any = node._input_metadata  # type: ignore[attr-defined]
        given = [
            torch.zeros(each.shape, dtype=each.dtype, device=each.device) if gradient is None else gradient
            for gradient, each in zip(gradients, metadata, strict=True)
        ]
        found = node.apply(*given)  # type: ignore[no-untyped-call]
    else:
        found = node(*gradients)
    return found if isinstance(found, tuple) else (found,)
