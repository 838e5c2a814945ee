"""What is remembered about a tensor, on the tensor: its shard on each axis, or the parameter it is a plain view of.

Several interpreters may meet one forward, one an axis. Each has a slot of its own on a tensor; ``shard_of``,
``with_shard`` and what builds on them mean the slot of the interpreter whose handler is running.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trireme.interpret.split import Shard

_SHARD = "_trireme_shard_"
_OWED = "/owed"
"""Beside an axis's slot, so that it goes where shards go when another axis passes a tensor on."""
_TOTAL = "_trireme_total"
_TABLES = "_trireme_tables"
_ORIGIN = "_trireme_origin"
_INPUT = "_trireme_input"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A whole tensor that shows a parameter; ``dims[i]`` is the parameter's dim behind its dim i, None if mixed."""

    name: str
    dims: tuple[int | None, ...]


class _Acting(threading.local):
    """The slot of the handler that runs in this thread; tensor parallel outside of all handlers."""

    slot = f"{_SHARD}tp"


_ACTING = _Acting()


@contextmanager
def acting_for(axis: str) -> Iterator[None]:
    """Mean the shards of ``axis`` inside."""
    before = _ACTING.slot
    _ACTING.slot = _SHARD + axis
    try:
        yield
    finally:
        _ACTING.slot = before


def shard_of(value: Any) -> Shard | None:
    """Return how a tensor is sharded; None for whole tensors and everything else."""
    return getattr(value, _ACTING.slot, None) if isinstance(value, Tensor) else None


def with_shard(tensor: Tensor, shard: Shard) -> Tensor:
    """Remember that ``tensor`` is a local shard."""
    setattr(tensor, _ACTING.slot, shard)
    return tensor


def marks_of(tensor: Tensor) -> dict[str, Shard]:
    """Return a tensor's shards of all axes, by axis: what must travel with it where its Python object can't."""
    slots = getattr(tensor, "__dict__", {})
    return {slot.removeprefix(_SHARD): shard for slot, shard in slots.items() if slot.startswith(_SHARD)}


def is_marked(tensor: Tensor, axis: str) -> bool:
    """Whether a tensor is a shard on ``axis``; unlike ``marks_of``, code that torch.compile reads may ask."""
    return hasattr(tensor, _SHARD + axis)


def with_marks(tensor: Tensor, marks: Mapping[str, Shard]) -> Tensor:
    """Remember shards of several axes."""
    for axis, shard in marks.items():
        setattr(tensor, _SHARD + axis, shard)
    return tensor


def with_other_marks(tensor: Tensor, source: Tensor) -> Tensor:
    """Remember about a result what ``source`` had on the other axes."""
    for axis, shard in marks_of(source).items():
        if not (_SHARD + axis).startswith(_ACTING.slot):
            setattr(tensor, _SHARD + axis, shard)
    return tensor


def is_owed(value: Any) -> bool:
    """Whether a tensor is this rank's summand of a whole one."""
    return isinstance(value, Tensor) and getattr(value, _ACTING.slot + _OWED, False)


def with_owed(tensor: Tensor, *, owed: bool = True) -> Tensor:
    """Remember that a tensor is a summand, or no more."""
    setattr(tensor, _ACTING.slot + _OWED, owed)
    return tensor


def num_tables_of(tensor: Tensor) -> int:
    """Return how many tables' rows are added up in a summand; 0 if it is something else."""
    count: int = getattr(tensor, _TABLES, 0)
    return count


def with_num_tables(tensor: Tensor, count: int) -> Tensor:
    """Remember how many tables' rows are added up in a summand."""
    setattr(tensor, _TABLES, count)
    return tensor


def total_of(tensor: Tensor) -> Tensor | None:
    """Return the sum that a summand is part of, if it is made already."""
    total: Tensor | None = getattr(tensor, _TOTAL, None)
    return total


def with_total(tensor: Tensor, total: Tensor) -> Tensor:
    """Remember a summand's sum."""
    setattr(tensor, _TOTAL, total)
    return tensor


def origin_of(value: Any) -> Origin | None:
    """Return which undecided parameter a tensor shows; known while planning only."""
    return getattr(value, _ORIGIN, None) if isinstance(value, Tensor) else None


def with_origin(tensor: Tensor, origin: Origin) -> Tensor:
    """Remember which parameter a tensor shows."""
    setattr(tensor, _ORIGIN, origin)
    return tensor


def is_input(value: Any) -> bool:
    """Whether a tensor is what the caller gave to the model, or integers made from it."""
    return isinstance(value, Tensor) and hasattr(value, _INPUT)


def as_input(tensor: Tensor) -> Tensor:
    """Remember that the caller gave this."""
    setattr(tensor, _INPUT, True)
    return tensor


def global_shape(tensor: Tensor) -> torch.Size:
    """Return the shape user code sees."""
    shard = shard_of(tensor)
    if shard is None:
        return tensor.shape
    shape = list(tensor.shape)
    shape[shard.dim] = shard.split.total
    return torch.Size(shape)


def tensors_in(*values: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments, nested ones too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from tensors_in(*value)
        elif isinstance(value, dict):
            yield from tensors_in(*value.values())


def sources_of(*values: Any) -> frozenset[str]:
    """Return the parameters that caused the shards among ``values``."""
    shards = [shard_of(tensor) for tensor in tensors_in(*values)]
    return frozenset().union(*(shard.sources for shard in shards if shard))


def map_tensors(value: Any, change: Any) -> Any:
    """Give the same nesting with every tensor replaced by ``change(tensor)``."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(each, change) for key, each in value.items()}
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        changed = [map_tensors(each, change) for each in value]
        return type(value)(*changed) if hasattr(value, "_fields") else type(value)(changed)
    return value
