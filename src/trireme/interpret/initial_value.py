"""Values of what was recorded, element by element: any part of a parameter without the rest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from trireme.interpret.counter import normal, uniform, uniform_bits
from trireme.interpret.initial_history import TRUNCATED, History, is_apart
from trireme.interpret.initial_record import Known, Place, Step

_LANES = 64
"""Elements are computed in whole multiples: a processor's vector loop and what is left over round differently."""
CHUNK = 1 << 14
"""Elements at a time: too few for torch to divide among threads, for the same reason."""

Drawing = Callable[[Tensor, int, tuple[Any, ...]], Tensor]


class NoValueError(Exception):
    """Elements that nobody filled."""


def _normal(index: Tensor, key: int, given: tuple[Any, ...]) -> Tensor:
    mean, std = given + (0.0, 1.0)[len(given) :]
    return normal(index, key).mul_(std).add_(mean)


def _uniform(index: Tensor, key: int, given: tuple[Any, ...]) -> Tensor:
    low, high = given + (0.0, 1.0)[len(given) :]
    return uniform(index, key).mul_(high - low).add_(low)


def _truncated(index: Tensor, key: int, given: tuple[Any, ...]) -> Tensor:
    """Invert the normal's distribution function between the bounds, in fp64."""
    mean, std, low, high = given
    first, last = (math.erf((bound - mean) / std / math.sqrt(2.0)) for bound in (low, high))
    # From the middle of each of 2**24 steps, so that neither end is infinite.
    place = uniform_bits(index, key).to(torch.float64).add_(0.5).mul_(2.0**-24)
    drawn = torch.erfinv(place.mul_(last - first).add_(first))
    return drawn.mul_(std * math.sqrt(2.0)).add_(mean).clamp_(low, high)


def _bernoulli(index: Tensor, key: int, given: tuple[Any, ...]) -> Tensor:
    p = given[0] if given else 0.5
    return uniform_bits(index, key).lt(round(p * 2**24))


DRAWN: Mapping[str, Drawing] = {
    "normal_": _normal,
    "uniform_": _uniform,
    TRUNCATED: _truncated,
    "randn": lambda index, key, given: normal(index, key),
    "randn_like": lambda index, key, given: normal(index, key),
    "rand": lambda index, key, given: uniform(index, key),
    "rand_like": lambda index, key, given: uniform(index, key),
}
"""Functions that draw a number for each element, and how that is done by counting."""

_COPIES = frozenset({"copy_", "_to_copy", "clone"})
_CONSTANT = {"zeros": 0, "zeros_like": 0, "new_zeros": 0, "zero_": 0, "ones": 1, "ones_like": 1, "new_ones": 1}
_FILLED = {"full": 1, "full_like": 1, "new_full": 2, "fill_": 1, "scalar_tensor": 0}
"""Which argument tells what they fill with."""


def parameters_of_draw(step: Step) -> tuple[Any, ...]:
    """Give the numbers that a drawing function was called with."""
    if step.name == TRUNCATED:
        return tuple(step.kwargs[name] for name in ("mean", "std", "a", "b"))
    if not step.name.endswith("_"):
        return ()
    named = [step.kwargs[name] for name in ("mean", "std", "from", "to") if name in step.kwargs]
    return (*step.args[1:], *named)


def is_by_element(history: History, storage: int) -> bool:
    """Whether each element of a storage follows from numbers of its own, so that parts can be made alone."""
    return all(_goes(history, step) for step in history.steps(storage))


def _goes(history: History, step: Step) -> bool:
    places = [*step.places(), *step.written]
    storages = history.recording.storages
    if len(step.written) != 1 or any(each.dtype != storages[each.storage].dtype for each in places):
        return False
    if not is_apart(step.written[0]):
        return False
    if step.name in DRAWN or step.name in _COPIES or step.name in _CONSTANT or step.name in _FILLED:
        return True
    return torch.Tag.pointwise in getattr(step.function, "tags", ()) and len(step.results) == 1


class Elements:
    """Computes chosen elements of storages. ``keys`` are the streams of the steps that draw, by number."""

    def __init__(self, history: History, keys: Mapping[int, int], *, device: torch.device) -> None:
        self._history = history
        self._keys = keys
        self._device = device

    def of(self, place: Place, numbers: Tensor, *, before: int | None = None) -> Tensor:
        """Give the elements of a place with these numbers, counted along its shape.

        Raises:
            NoValueError: Nobody filled one of them.
        """
        return self._stored(place.storage, _lies(place, numbers), before=before)

    def _stored(self, storage: int, offsets: Tensor, *, before: int | None) -> Tensor:
        found = self._history.recording.storages[storage]
        values = torch.zeros(offsets.shape, dtype=found.dtype, device=self._device)
        there = torch.zeros(offsets.shape, dtype=torch.bool, device=self._device)
        for step, place in self._history.live(storage, before=before):
            numbers, inside = _numbers_at(place, offsets)
            if bool(inside.all()):
                values = self._written(step, place, numbers, values)
                there = inside
            elif bool(inside.any()):
                values[inside] = self._written(step, place, numbers[inside], values[inside])
                there |= inside
        if not bool(there.all()):
            raise NoValueError
        return values

    def _written(self, step: Step, place: Place, numbers: Tensor, old: Tensor) -> Tensor:
        if step.name in DRAWN:
            drawn = DRAWN[step.name](_padded(numbers), self._keys[step.index], parameters_of_draw(step))
            return drawn[: numbers.numel()].to(place.dtype)
        if step.name in _CONSTANT:
            return torch.full_like(old, _CONSTANT[step.name])
        if step.name in _FILLED:
            given = step.args[_FILLED[step.name] :]
            value = given[0] if given else step.kwargs.get("fill_value", step.kwargs.get("value"))
            filled = self._given(value, place, numbers, old, step)
            return torch.zeros_like(old).copy_(filled) if isinstance(filled, Tensor) else torch.full_like(old, filled)
        if step.name in _COPIES:
            source = step.args[1 if step.name == "copy_" else 0]
            values: Tensor = self._given(source, place, numbers, old, step)
            return torch.empty_like(old).copy_(_cut(values, numbers))
        return self._computed(step, place, numbers, old)

    def _computed(self, step: Step, place: Place, numbers: Tensor, old: Tensor) -> Tensor:
        """Run torch's own function on these elements."""

        def give(value: Place | Known) -> Any:
            return self._given(value, place, numbers, old, step)

        args, kwargs = tree_map_only((Place, Known), give, (step.args, _here(step.kwargs, self._device)))
        result: Tensor = step.function(*args, **kwargs)
        return torch.empty_like(old).copy_(_cut(result, numbers))

    def _given(self, value: Any, place: Place, numbers: Tensor, old: Tensor, step: Step) -> Any:
        """Give what an argument has for these elements, in whole lanes; arguments are broadcast as torch does."""
        if not isinstance(value, (Place, Known)):
            return value
        if value == place and step.name not in _COPIES:
            return _padded(old).clone()
        shape = value.shape if isinstance(value, Place) else tuple(value.values.shape)
        if not shape:
            numbers = torch.zeros(1, dtype=torch.int64, device=self._device)
        else:
            numbers = _broadcast(_padded(numbers), place.shape, shape)
        if isinstance(value, Known):
            found = value.values.reshape(-1).to(self._device)[numbers]
        else:
            found = self.of(value, numbers, before=step.index)
        return found if shape else found.reshape(())


def _here(kwargs: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: device if name == "device" and value is not None else value for name, value in kwargs.items()}


def _cut(values: Tensor, numbers: Tensor) -> Tensor:
    return values[: numbers.numel()] if values.ndim else values


def _padded(values: Tensor) -> Tensor:
    rest = -values.numel() % _LANES
    return values if rest == 0 or not values.numel() else torch.cat([values, values[-1:].expand(rest)])


def _lies(place: Place, numbers: Tensor) -> Tensor:
    """Turn numbers along a place's shape into places in its storage."""
    offsets = torch.full_like(numbers, place.offset)
    rest = numbers
    for stride, size in reversed(list(zip(place.stride, place.shape, strict=True))):
        offsets += (rest % size) * stride
        rest = rest // size
    return offsets


def _numbers_at(place: Place, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """Turn places in a storage into numbers along a view's shape, and say which of them belong to the view."""
    rest = offsets - place.offset
    inside = rest >= 0
    numbers = torch.zeros_like(offsets)
    counts = [math.prod(place.shape[dim + 1 :]) for dim in range(len(place.shape))]
    order = sorted(range(len(place.shape)), key=lambda dim: (place.stride[dim], place.shape[dim]), reverse=True)
    for dim in order:
        if place.shape[dim] == 1:
            continue
        index = rest // place.stride[dim]
        inside &= index < place.shape[dim]
        numbers += index * counts[dim]
        rest = rest - index * place.stride[dim]
    return numbers, inside & (rest == 0) & (place.numel > 0)


def _broadcast(numbers: Tensor, shape: tuple[int, ...], given: tuple[int, ...]) -> Tensor:
    """Turn numbers along ``shape`` into numbers along a shape that is broadcast to it."""
    if shape == given:
        return numbers
    found, rest, count = torch.zeros_like(numbers), numbers, 1
    for dim in range(1, len(shape) + 1):
        size = given[-dim] if dim <= len(given) else 1
        if size != 1:
            found += (rest % shape[-dim]) * count
            count *= size
        rest = rest // shape[-dim]
    return found
