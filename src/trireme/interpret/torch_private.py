"""What the room needs of torch and torch doesn't promise: every private name is imported here and nowhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import DisableTorchFunction
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.autograd.function import _SingleLevelFunction
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes

__all__ = [
    "SKIPS_META",
    "CheckpointFunction",
    "DataDependentOutputException",
    "DisableTorchFunction",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "HollowMode",
    "apart",
    "apply_function",
    "calls_watched",
    "entered_again",
    "flash_backward",
    "flash_forward",
    "has_flash",
    "in_backward",
    "is_hollow",
    "is_met_by",
    "modes_entered",
    "modules_noticed",
    "rank_outside",
    "unset_fake_temporarily",
    "watching",
]

CheckpointFunction = checkpoint.CheckpointFunction
SKIPS_META = {
    each.__code__: each
    for each in (nn.init._no_grad_trunc_normal_, nn.init.orthogonal_, nn.init.sparse_, nn.init.dirac_)
}
"""Functions that ask whether their tensor is on meta, and then leave it alone."""


class HollowMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Makes tensors without memory that count as present: with them one rank runs as if it had its numbers."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)


def is_hollow(value: Any) -> bool:
    """Whether a tensor counts as present although it has no numbers."""
    return isinstance(value, FakeTensor) and isinstance(value.fake_mode, HollowMode)


def apply_function(function: Any, *args: Any) -> Any:
    """Run an autograd function unseen by whoever watches the class between it and torch's core."""
    return super(_SingleLevelFunction, function).apply(*args)


def is_met_by(mode: Any) -> bool:
    """Whether torch functions called here and now, in this thread, reach a mode."""
    return any(each is mode for each in _get_current_function_mode_stack())  # type: ignore[no-untyped-call]


def modes_entered() -> tuple[Any, ...]:
    """Give the function modes that calls reach here and now, the one that is asked last first."""
    return tuple(_get_current_function_mode_stack())  # type: ignore[no-untyped-call]


@contextmanager
def entered_again(modes: tuple[Any, ...]) -> Iterator[None]:
    """Have calls reach modes that they reached before, also from within a handler of theirs."""
    with ExitStack() as stack:
        for mode in modes:
            if not is_met_by(mode):
                stack.enter_context(mode.active() if hasattr(mode, "active") else mode)
        yield


def rank_outside() -> int:
    """Return the rank of the interpreter that the running handler calls through to; 0 if there is none."""
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    ranks: list[int] = [mode.line.rank for mode in stack if hasattr(mode, "line")]
    return ranks[-1] if ranks else 0


def in_backward() -> bool:
    """Whether autograd runs a task in this thread, as it does while a forward is recomputed."""
    return torch._C._current_graph_task_id() != -1


@contextmanager
def calls_watched(enter: Callable[[Any], None], leave: Callable[[Any], None]) -> Iterator[None]:
    """Be told of every module that is called, and when it returns or fails."""
    before = register_module_forward_pre_hook(lambda module, args: enter(module))
    after = register_module_forward_hook(lambda module, args, result: leave(module), always_call=True)
    try:
        yield
    finally:
        after.remove()
        before.remove()


@contextmanager
def apart() -> Iterator[None]:
    """Compute something by the way: no fake tensors, and nothing that recomputation would miss the second time."""
    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor),
    ):
        yield


_unseen = threading.local()


@contextmanager
def unseen() -> Iterator[None]:
    """Run what is inside unseen by function modes and by whoever watches autograd functions: it is no user's code."""
    outer = is_unseen()
    _unseen.now = True
    try:
        with DisableTorchFunction():
            yield
    finally:
        _unseen.now = outer


def is_unseen() -> bool:
    """Whether this thread is inside ``unseen``."""
    return getattr(_unseen, "now", False)


@contextmanager
def watching(
    apply: Callable[[Any, tuple[Any, ...]], Any] | None,
    recompute: Callable[[Callable[..., Iterator[None]], Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
) -> Iterator[Callable[..., Any]]:
    """Show what torch has no hook for: ``autograd.Function.apply`` and recomputed functions.

    Args:
        apply: Called with a function's class and its arguments in place of its own ``apply``; None leaves that.
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
        assert apply is not None
        if is_unseen():
            return before(cls, *args)
        with DisableTorchFunction():
            return apply(cls, args)

    def entering(function: Callable[..., Any], *rest: Any, **options: Any) -> Any:
        return recompute(generator, function, rest, options)

    if apply is not None:
        _SingleLevelFunction.apply = classmethod(applied)  # type: ignore[attr-defined]
    checkpoint._checkpoint_without_reentrant_generator = entering  # type: ignore[assignment]
    try:
        yield before
    finally:
        if apply is None:
            pass
        elif outer is None:
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]
        else:
            _SingleLevelFunction.apply = outer  # type: ignore[attr-defined]
        checkpoint._checkpoint_without_reentrant_generator = generator


def has_flash(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether torch has a fused attention here that also gives the logarithm of the sum of weights."""
    if query.shape[-1] != value.shape[-1] or 0 in (*query.shape, *key.shape):
        return False
    if query.device.type == "meta":
        return False
    if query.is_cpu:
        return True
    return query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) and query.shape[-1] % 8 == 0


def flash_forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Give result and logarithm of the sum of weights; ``[B, H, T, K]`` in, as many key heads as query heads."""
    if query.is_cpu:
        op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = op(query, key, value, 0.0, causal, scale=scale)
        return out, lse
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal, scale=scale)[:2]
    return out, lse[..., : query.shape[-2]]


def flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, lse: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of query, key and value; ``out`` and ``lse`` may be those of more keys than these."""
    grad, out, lse = grad.contiguous(), out.contiguous(), lse.contiguous()
    if query.is_cpu:
        op: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        grads = op(grad, query, key, value, out, lse, 0.0, causal, scale=scale)
        return grads[0], grads[1], grads[2]
    empty = torch.empty(0, device=query.device)
    none = torch.zeros((), dtype=torch.uint64, device=query.device)
    op = torch.ops.aten._scaled_dot_product_flash_attention_backward
    sizes = query.shape[-2], key.shape[-2]
    grads = op(grad, query, key, value, out, lse, empty, empty, *sizes, 0.0, causal, none, none, scale=scale)
    return grads[0], grads[1], grads[2]


@contextmanager
def modules_noticed(notice: Callable[[nn.Module], None]) -> Iterator[None]:
    """Be told of every module that gets a parameter, buffer or child."""

    def told(module: nn.Module, name: str, value: Any) -> None:
        notice(module)

    handles = [
        register_module_parameter_registration_hook(told),
        register_module_buffer_registration_hook(told),
        register_module_module_registration_hook(told),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
