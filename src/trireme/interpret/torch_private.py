"""What the room needs of torch and torch doesn't promise: every private name is imported here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import DisableTorchFunction
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint

__all__ = [
    "CheckpointFunction",
    "DataDependentOutputException",
    "DisableTorchFunction",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "apply_function",
    "in_backward",
    "is_met_by",
    "unset_fake_temporarily",
    "watching",
]

CheckpointFunction = checkpoint.CheckpointFunction


def apply_function(function: Any, *args: Any) -> Any:
    """Run an autograd function unseen by whoever watches the class between it and torch's core."""
    return super(_SingleLevelFunction, function).apply(*args)


def is_met_by(mode: Any) -> bool:
    """Whether torch functions called here and now, in this thread, reach a mode."""
    return any(each is mode for each in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def in_backward() -> bool:
    """Whether autograd runs a task in this thread, as it does while a forward is recomputed."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def watching(
    apply: Callable[[Any, tuple[Any, ...]], Any],
    recompute: Callable[[Callable[..., Iterator[None]], Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
) -> Iterator[Callable[..., Any]]:
    """Show what torch has no hook for: ``autograd.Function.apply`` and recomputed functions.

    Args:
        apply: Called with a function's class and its arguments in place of its own ``apply``.
        recompute: Called with torch's generator for non-reentrant recomputation, the function that is recomputed
            and the further arguments; gives the generator to use.

    Yields:
        How a function was applied before: unseen, or seen by whoever watched already.
    """
    generator: Any = checkpoint._checkpoint_without_reentrant_generator
    # Below Function.apply, for people keep that method under a name of their own.
    outer = _SingleLevelFunction.__dict__.get("apply")
    before = apply_function if outer is None else outer.__func__

    def applied(cls: Any, *args: Any) -> Any:
        with DisableTorchFunction():
            return apply(cls, args)

    def entering(function: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        return recompute(generator, function, rest, options)

    _SingleLevelFunction.apply = classmethod(applied)  # type: ignore[attr-defined]
    checkpoint._checkpoint_without_reentrant_generator = entering  # type: ignore[assignment]
    try:
        yield before
    finally:
        if outer is None:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        else:
            _SingleLevelFunction.apply = outer  # type: ignore[attr-defined]
        checkpoint._checkpoint_without_reentrant_generator = generator
