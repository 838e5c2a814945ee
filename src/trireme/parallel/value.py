"""Values of one forward: which tensors depend on parameters, under which number every rank knows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor

from trireme.interpret import is_hollow
from trireme.parallel.tracing_private import FakeTensor

_VALUE = "_trireme_value"
_FREE = "_trireme_free"
_OURS = (_VALUE, _FREE)
_SHARD = "_trireme_shard"


class ValueId(NamedTuple):
    """A result of a forward: of which numbered call, and which of its tensors."""

    call: int
    place: int


def value_of(tensor: Tensor) -> ValueId | None:
    """Return the number of a value, None for what depends on inputs and buffers alone."""
    return getattr(tensor, _VALUE, None)


def number(tensor: Tensor, value: ValueId) -> None:
    """Remember a tensor's number."""
    setattr(tensor, _VALUE, value)


def is_absent(value: Any) -> bool:
    """Whether a tensor has a shape but is somewhere else."""
    return isinstance(value, FakeTensor) and not hasattr(value, _FREE) and not is_hollow(value)


def set_free(tensor: Tensor) -> Tensor:
    """Remember that a tensor without numbers (a buffer not yet loaded) doesn't depend on parameters."""
    setattr(tensor, _FREE, True)
    return tensor


def notes_of(tensor: Tensor) -> dict[str, Any]:
    """Return what others remember about a tensor (how it is sharded), which has to travel with it."""
    return {key: value for key, value in vars(tensor).items() if key.startswith("_trireme_") and key not in _OURS}


def is_shard(tensor: Tensor) -> bool:
    """Whether a tensor is a part of what user code sees."""
    return any(key.startswith(_SHARD) for key in vars(tensor))


def seen_shape(tensor: Tensor) -> tuple[int, ...]:
    """Return the shape that user code sees, with every axis' shards put together."""
    shape = list(tensor.shape)
    for key, shard in vars(tensor).items():
        if key.startswith(_SHARD):
            shape[shard.dim] = max(shape[shard.dim], shard.split.total)
    return tuple(shape)


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results, in order, nested ones too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(*value)
        elif isinstance(value, Mapping):
            yield from tensors_in(*value.values())


def map_tensors(value: Any, change: Any) -> Any:
    """Give the same nesting with every tensor replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and value and any(_nests(each) for each in value):
        changed = [map_tensors(each, change) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return value


def _nests(value: Any) -> bool:
    return isinstance(value, (Tensor, list, tuple, dict))
