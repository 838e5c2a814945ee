"""Sums that are still owed: partial results go through linear steps as they are, and are added up when one is needed.

Every rank holds a summand of the whole. Adding two such tensors, picking rows, reducing the experts of a token or
scaling by a whole factor gives summands again, so one all-reduce of the smallest result does for all: token and
position tables cut by rows, experts with a shared one, attention and MLP side by side. Whatever isn't linear gets
the sum, made once. What leaves the interpreter is summed at its exit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from trireme.interpret import metadata
from trireme.interpret.call import Call, Rule
from trireme.interpret.tensor_state import is_owed, num_tables_of, shard_of, total_of, with_owed

_VIEWS = {"view", "reshape", "flatten", "unflatten", "transpose", "swapaxes", "permute", "movedim"}
_LINEAR = _VIEWS | {"unsqueeze", "squeeze", "contiguous", "index_select", "sum", "mean", "neg", "__neg__", "detach"}
_ADDS = frozenset({"add", "__add__", "__radd__", "sub", "__sub__", "__rsub__"})
_SCALES = frozenset({"mul", "__mul__", "__rmul__", "multiply"})
_DIVIDES = frozenset({"div", "__truediv__", "true_divide"})
_CASTS = frozenset({"to", "type_as", "type", "float", "double", "half", "bfloat16"})
_ANSWERS: frozenset[Rule] = frozenset(
    {metadata.shape, metadata.size, metadata.numel, metadata.length, metadata.as_it_is}
)


def passed_on(call: Call, rule: Rule | None) -> Any:
    """Give what a call makes of summands without adding them up; NotImplemented if it needs the sum."""
    if rule in _ANSWERS:
        return call.function(*call.args, **call.kwargs)
    step = _step(call)
    return NotImplemented if step is None or not _alone(call) else step(call)


def _alone(call: Call) -> bool:
    """Whether no shard and no sum that is made already takes part, and no tensor is given for results."""
    arguments = (*call.args, *call.kwargs.values())
    made = any(is_owed(each) and total_of(each) is not None for each in arguments)
    return call.kwargs.get("out") is None and not made and not any(shard_of(each) for each in arguments)


def _step(call: Call) -> Callable[[Call], Any] | None:
    name = call.name
    if name in _LINEAR:
        return _linear
    if name in _ADDS:
        return _added
    if name in _SCALES or name in _DIVIDES:
        return _scaled
    if name == "__getitem__":
        return _picked
    if name in _CASTS:
        return _cast
    return _collected if name == "index_add_" else None


def _linear(call: Call) -> Any:
    if not is_owed(call.args[0]) or call.kwargs.get("dtype") is not None:
        return NotImplemented
    return _still_owed(call, call.args[0], call.function(*call.args, **call.kwargs))


def _still_owed(call: Call, source: Tensor, result: Tensor) -> Tensor:
    if result is source:
        return result
    call.interpreter.hand_on(source)
    return call.interpreter.owe(result)


def _added(call: Call) -> Any:
    summands = call.args[:2]
    both = len(summands) == 2 and all(is_owed(each) for each in summands)
    if not both:
        return NotImplemented
    result = call.function(*call.args, **call.kwargs)
    counts = [num_tables_of(each) for each in summands]
    for each in summands:
        call.interpreter.hand_on(each)
    return call.interpreter.owe_tables(result, sum(counts)) if all(counts) else call.interpreter.owe(result)


def _scaled(call: Call) -> Any:
    if len(call.args) != 2 or call.kwargs:
        return NotImplemented
    first, second = call.args
    owed, factor = (first, second) if is_owed(first) else (second, first)
    if is_owed(factor) or (owed is second and call.name in _DIVIDES):
        return NotImplemented
    if isinstance(factor, Tensor):
        if not _scales_rows(factor, owed):
            return NotImplemented
        # Its gradient is summed in the product's format, and rounded to its own only then.
        factor = call.interpreter.spread(factor.to(torch.promote_types(factor.dtype, owed.dtype)))
    arguments = (owed, factor) if owed is first else (factor, owed)
    return _still_owed(call, owed, call.function(*arguments))


def _scales_rows(factor: Tensor, owed: Tensor) -> bool:
    """Whether a factor leaves the shape alone and costs no more than it spares.

    A learned one needs an all-reduce of its own gradient; worth it for one number a row (an expert's share), not for
    one a column, which can as well wait for the sum.
    """
    fits = factor.ndim <= owed.ndim and all(
        size in (1, other) for size, other in zip(reversed(factor.shape), reversed(owed.shape), strict=False)
    )
    if not fits or not factor.is_floating_point():
        return False
    return not factor.requires_grad or (factor.ndim > 0 and factor.shape[-1] == 1)


def _picked(call: Call) -> Any:
    if len(call.args) != 2 or not is_owed(call.args[0]):
        return NotImplemented
    return _still_owed(call, call.args[0], call.function(*call.args))


def _cast(call: Call) -> Any:
    """The same format is no cast; a narrower one would round the summands instead of the sum."""
    if not is_owed(call.args[0]):
        return NotImplemented
    result = call.function(*call.args, **call.kwargs)
    same = result.dtype == call.args[0].dtype and result.device == call.args[0].device
    return _still_owed(call, call.args[0], result) if same else NotImplemented


def _collected(call: Call) -> Any:
    """``target.index_add_(dim, index, owed)``: a target without history becomes a sum that is owed too."""
    if len(call.args) != 4 or call.kwargs:
        return NotImplemented
    target, _, _, source = call.args
    if not is_owed(source) or (not is_owed(target) and (target.requires_grad or target._is_view())):
        return NotImplemented
    if not is_owed(target):
        if call.interpreter.line.rank != 0:
            target.zero_()
        with_owed(target)
    call.interpreter.hand_on(source)
    call.function(*call.args)
    return call.interpreter.owe(target)
