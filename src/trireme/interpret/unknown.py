"""What planning assumes of values that only a run knows.

A plan is made on tensors without contents. Where the module's code asks for contents, an answer is assumed that leads
through its usual path: a test fails, a few elements are found. A run on another path is as right as ever, for it
meets the rules again; it may have to gather something that the plan didn't foresee.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.tensor_state import map_tensors
from trireme.interpret.torch_private import DataDependentOutputException, DynamicOutputShapeException

_NUM_FOUND = 2
"""Elements that a search finds: more than one, so that loops over them are seen to repeat."""

_ANSWERS = {"__bool__": False, "__contains__": False, "is_nonzero": False, "equal": False, "allclose": False}

_UNKNOWN = (DataDependentOutputException, DynamicOutputShapeException)


class UnknownValueError(Exception):
    """The module's code needs a value for which a plan has no harmless assumption."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(what)


def assuming(call: Call, meet: Callable[[Call], Any]) -> Any:
    """Give ``meet(call)``, or what is assumed of it where that depends on contents.

    Raises:
        UnknownValueError: There is no harmless assumption.
    """
    try:
        return meet(call)
    except _UNKNOWN as error:
        answer = assumed_answer(call.name, call.args)
        if answer is not None:
            return answer
        if call.name in ("__getitem__", "__setitem__"):
            x, index, *value = call.args
            return meet(replace(call, args=(x, map_tensors(index, _known_index), *map(_one_for_all, value))))
        assumed = _found(call)
        if assumed is None:
            raise UnknownValueError(call.name) from error
        return assumed


def assumed_answer(name: str, args: tuple[Any, ...]) -> bool | float | None:
    """Give the assumed answer of a call that asks for contents to decide something; None of other calls."""
    if name in ("item", "__float__") and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
        return 0.0
    return _ANSWERS.get(name)


def _found(call: Call) -> Any:
    x = call.get(0, "input", "condition", "self")
    if not isinstance(x, Tensor):
        return None
    if call.name in ("nonzero", "argwhere", "where"):
        found = torch.zeros((_NUM_FOUND, x.ndim), dtype=torch.int64, device=x.device)
        return tuple(found.unbind(1)) if call.name == "where" or call.kwargs.get("as_tuple") else found
    if call.name == "masked_select":
        return x.flatten()[:_NUM_FOUND]
    if call.name in ("bincount", "unique"):
        return torch.zeros((_NUM_FOUND,), dtype=torch.int64, device=x.device)
    return None


def _known_index(index: Tensor) -> Any:
    """Put the first element in place of one that isn't known, a few rows in place of those that a mask selects."""
    if index.dtype == torch.bool:
        found = torch.zeros((_NUM_FOUND,), dtype=torch.int64, device=index.device)
        return found if index.ndim == 1 else (found,) * index.ndim
    return 0 if index.ndim == 0 else index


def _one_for_all(value: Any) -> Any:
    return value.sum() if isinstance(value, Tensor) else value
