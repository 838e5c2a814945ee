"""Values of what was recorded, whole: the recorded steps run again on the host, for one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from trireme.interpret.initial_history import History
from trireme.interpret.initial_record import HOST, Known, Place, Step
from trireme.interpret.initial_value import DRAWN, NoValueError, parameters_of_draw


def make_whole(history: History, place: Place, keys: Mapping[int, int]) -> Tensor:
    """Give all values of a place, on the host; what draws has its own stream, whatever else is made.

    Raises:
        NoValueError: Nobody filled it.
    """
    steps = history.steps(place.storage)
    if not any(each.storage == place.storage for step in steps for each in step.written):
        raise NoValueError
    tensors: dict[int, Tensor] = {}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for step in steps:
            _run(step, history, tensors, keys.get(step.index, 0))
    return _view(place, history, tensors).clone()


def _run(step: Step, history: History, tensors: dict[int, Tensor], key: int) -> None:
    if step.name in DRAWN:
        for place in step.written:
            index = torch.arange(place.numel, device=HOST)
            drawn = DRAWN[step.name](index, key, parameters_of_draw(step))
            _view(place, history, tensors).copy_(drawn.view(place.shape))
        return
    torch.manual_seed(key)

    def give(value: Place | Known) -> Tensor:
        return value.values.clone() if isinstance(value, Known) else _view(value, history, tensors)

    args, kwargs = tree_map_only((Place, Known), give, (step.args, _on_host(step)))
    result = step.function(*args, **kwargs)
    for made, value in zip(step.results, tree_leaves(result), strict=False):
        if made is not None and made in step.written:
            target = _view(made, history, tensors)
            if target.data_ptr() != value.data_ptr():
                target.copy_(value)


def _on_host(step: Step) -> dict[str, Any]:
    options = {name: value for name, value in step.kwargs.items() if name != "pin_memory"}
    return {name: HOST if name == "device" and value is not None else value for name, value in options.items()}


def _view(place: Place, history: History, tensors: dict[int, Tensor]) -> Tensor:
    storage = history.recording.storages[place.storage]
    if place.storage not in tensors:
        tensors[place.storage] = torch.zeros(storage.numel, dtype=storage.dtype, device=HOST)
    base = tensors[place.storage]
    return torch.as_strided(base.view(place.dtype), place.shape, place.stride, place.offset)
