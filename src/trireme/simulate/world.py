"""The world of a simulated rank: tensors without memory compute shapes, small ones compute numbers, all are counted.

Parameters, and whatever is large, are hollow: they have shape, format and strides, and count as present. What is
small and made from inputs alone (token ids, masks, positions, counts) is real, so that code that looks at it finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from trireme.errors import VerifyError
from trireme.interpret import HollowMode, is_hollow
from trireme.simulate.collective import CollectiveCounter, answer_as_equals
from trireme.simulate.ledger import Ledger
from trireme.simulate.torch_private import FakeTensor, TorchDispatchMode, in_other_fake
from trireme.simulate.users_line import users_line

_SMALL_NUMEL = 1 << 16
_BLANK = ("aten::empty", "aten::empty_strided")
_FACTORIES = (*_BLANK, "aten::zeros", "aten::ones", "aten::rand", "aten::randn")
_VALUE = "aten::_local_scalar_dense"


class World(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Meets every operator that a rank runs, simulated or real.

    Args:
        ledger: Told of memory.
        collectives: Told of collectives.
        hollow: Makes tensors without memory; None for a rank that really runs.
    """

    def __init__(self, *, ledger: Ledger, collectives: CollectiveCounter, hollow: HollowMode | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger, self.collectives, self.hollow = ledger, collectives, hollow

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        if func.namespace == "prim" or in_other_fake():
            return func(*args, **named)
        tensors = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        if any(isinstance(tensor, FakeTensor) and not is_hollow(tensor) for tensor in tensors):
            return func(*args, **named)  # a trace or a plan by the way
        if func.namespace == "c10d":
            return self._communicate(func, args, named, tensors)
        result = self._run(func, args, named, tensors)
        if any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in tensors):
            return result
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not (isinstance(leaf, FakeTensor) and not is_hollow(leaf)):
                self.ledger.note(leaf)
        return result

    def _run(self, func: Any, args: tuple[Any, ...], named: dict[str, Any], tensors: list[Tensor]) -> Any:
        if self.hollow is None:
            return func(*args, **named)
        if not tensors and _is_made_hollow(func, args, named):
            with self.hollow:
                return func(*args, **named)
        if func._schema.name == _VALUE and is_hollow(tensors[0]):
            return _stand_in(tensors[0])
        result = func(*args, **named)
        return _written(func, args, named) if func._schema.is_mutable and is_hollow(result) else result

    def _communicate(self, func: Callable[..., Any], args: Any, named: Any, tensors: list[Tensor]) -> Any:
        name = func._schema.name.partition("::")[2]  # type: ignore[attr-defined]
        self.collectives.count(name, args)
        if self.hollow is not None and not any(is_hollow(tensor) for tensor in tensors):
            answer_as_equals(name, args)
        result = func(*args, **named)
        if name == "_reduce_scatter_base_":
            self.ledger.assign(args[:1], "gradients")
        return result


def _written(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Give what an operator wrote to: a real tensor stays the one it is, although a hollow one was put into it."""
    names = [each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write]
    place = [each.name for each in func._schema.arguments].index(names[0])
    return args[place] if place < len(args) else named[names[0]]


def _is_made_hollow(func: Any, args: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
    """Whether a call that takes no tensor makes a large one, or one for numbers that are still to come."""
    sizes = next((value for value in args if isinstance(value, (list, tuple))), None)
    device = named.get("device")
    on_meta = device is not None and torch.device(device).type == "meta"
    if sizes is None or on_meta or func._schema.name not in _FACTORIES:
        return False
    if not (named.get("dtype") or torch.get_default_dtype()).is_floating_point:
        return False  # ids, masks, pickled objects: somebody looks at them
    return func._schema.name in _BLANK or math.prod(map(int, sizes)) > _SMALL_NUMEL


def _stand_in(tensor: Tensor) -> float:
    """Give a value where there is none: a loss or a norm may be any number, a count or a decision may not.

    Raises:
        VerifyError: The value would decide what runs.
    """
    if not tensor.is_floating_point():
        raise VerifyError("simulate.asks_value", line=users_line(), dtype=str(tensor.dtype).removeprefix("torch."))
    return 1.0
