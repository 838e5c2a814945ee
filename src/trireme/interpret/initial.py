"""Initial values of a module on the meta device: any part of any parameter, with the numbers of the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret.counter import stream_key
from trireme.interpret.initial_history import History
from trireme.interpret.initial_own import record_initial
from trireme.interpret.initial_record import HOST, Place
from trireme.interpret.initial_value import CHUNK, DRAWN, Elements, NoValueError, is_by_element
from trireme.interpret.initial_whole import make_whole
from trireme.words import say

Ranges = Sequence[Sequence[tuple[int, int]]]
"""For each dim the stretches (offset, length) of the whole that are wanted, one after the other."""


class InitialValues:
    """Knows how every tensor of a module that is on meta is filled.

    A number follows from the seed, the first name of the parameter, and the element's place in the whole: not from
    the order of parameters, nor from who makes which part. Where a value needs its neighbours (an orthogonal
    matrix), that one parameter is made whole on the host, and cut.

    Attributes:
        made_whole: Names of the parameters that were made whole.
        was_seen: Whether all that the module's code does is known.
    """

    def __init__(self, module: nn.Module, *, seed: int) -> None:
        """Find out how a module is filled.

        Raises:
            LayoutError: Nobody fills one of its tensors.
        """
        recording, self.was_seen = record_initial(module)
        self._history = History(recording)
        self._places: dict[str, Place] = {}
        self._keys: dict[int, int] = {}
        self._by_element: dict[int, bool] = {}
        self.made_whole: set[str] = set()
        for name, tensor in _named(module):
            self._places[name] = recording.place_of(tensor)
        for name, place in self._places.items():
            self._name_streams(name, place, seed=seed)
        self._check(module)

    @property
    def names(self) -> frozenset[str]:
        """Names of all tensors that are on meta, tied ones under each."""
        return frozenset(self._places)

    def _name_streams(self, name: str, place: Place, *, seed: int) -> None:
        """Give what is drawn for a tensor a stream, unless it was drawn for an earlier one too."""
        drawn = [step for step in self._history.steps(place.storage) if _draws(step.name, step.function)]
        new = [step for step in drawn if step.index not in self._keys]
        for count, step in enumerate(new):
            # The first stream is that of initial numbers that weren't recorded but are drawn by name.
            self._keys[step.index] = stream_key(seed, "init", name, *([count] if count else []))

    def _check(self, module: nn.Module) -> None:
        for name, place in self._places.items():
            if place.numel and not self._history.live(place.storage):
                raise self._nobody(name, type(module).__name__)

    def _nobody(self, name: str, module: str) -> LayoutError:
        return LayoutError("initial.nobody_seen" if self.was_seen else "initial.nobody", name=name, module=module)

    def fill(self, name: str, target: Tensor, *, ranges: Ranges) -> None:
        """Fill a tensor with a part of the one of that name.

        Args:
            name: In the module.
            target: Real; of the part's shape.
            ranges: Which part it is.

        Raises:
            LayoutError: Nobody filled some of it.
        """
        place = self._places[name]
        if place.storage not in self._by_element:
            self._by_element[place.storage] = is_by_element(self._history, place.storage)
        try:
            if self._by_element[place.storage]:
                self._fill_elements(target, place, ranges)
            else:
                self.made_whole.add(name)
                self._cut(target, self.whole(name), ranges)
        except NoValueError:
            raise self._nobody(name, "") from None

    def whole(self, name: str) -> Tensor:
        """Give all of a tensor, on the host."""
        place = self._places[name]
        try:
            return make_whole(self._history, place, self._keys)
        except NoValueError:
            raise self._nobody(name, "") from None

    @torch.no_grad()
    def _fill_elements(self, target: Tensor, place: Place, ranges: Ranges) -> None:
        elements = Elements(self._history, self._keys, device=target.device)
        along = [_along(stretches, target.device) for stretches in ranges]
        count = target.numel()
        in_order = target.is_contiguous()
        flat = target.detach().view(-1) if in_order else target.new_empty(count)
        for start in range(0, count, CHUNK):
            local = torch.arange(start, min(start + CHUNK, count), device=target.device)
            flat[start : start + CHUNK] = elements.of(place, _whole_numbers(local, along, place.shape))
        if not in_order:
            target.copy_(flat.view(target.shape))

    @torch.no_grad()
    def _cut(self, target: Tensor, whole: Tensor, ranges: Ranges) -> None:
        for dim, stretches in enumerate(ranges):
            if tuple(stretches) != ((0, whole.shape[dim]),):
                whole = whole.index_select(dim, _along(stretches, whole.device))
        target.copy_(whole)


def _draws(name: str, function: Callable[..., object]) -> bool:
    tags = getattr(function, "tags", None)
    return name in DRAWN or tags is None or torch.Tag.nondeterministic_seeded in tags


def _along(stretches: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    parts = [torch.arange(start, start + length, device=device) for start, length in stretches]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64, device=device)


def _whole_numbers(local: Tensor, along: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Turn numbers along a part's shape into numbers along the whole one's."""
    numbers, rest, count = torch.zeros_like(local), local, 1
    for places, size in zip(reversed(along), reversed(shape), strict=True):
        numbers += places[rest % places.numel()] * count
        rest = rest // places.numel()
        count *= size
    return numbers


def _named(module: nn.Module) -> list[tuple[str, Tensor]]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return [(name, tensor) for name, tensor in named if tensor.is_meta]


def has_meta(module: nn.Module) -> bool:
    """Whether something of a module has no values yet."""
    return bool(_named(module))


def everything(shape: Sequence[int]) -> Ranges:
    """Give the ranges that are all of a tensor."""
    return [((0, size),) for size in shape]


def fill_buffers(module: nn.Module, initial: InitialValues) -> None:
    """Give buffers on meta their values, on the host; one that stands in two places stays one."""
    made: dict[int, Tensor] = {}
    for prefix, owner in module.named_modules():
        for name, buffer in owner._buffers.items():
            if buffer is None or not buffer.is_meta:
                continue
            if id(buffer) not in made:
                made[id(buffer)] = initial.whole(f"{prefix}.{name}" if prefix else name)
            owner._buffers[name] = made[id(buffer)]


def fill_parameters(
    module: nn.Module,
    fill: Callable[[str, Tensor], None],
    *,
    device: torch.device,
) -> None:
    """Give parameters on meta storage and have it filled, one after the other; tied ones stay one."""
    made: dict[int, nn.Parameter] = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is None or not parameter.is_meta:
                continue
            if id(parameter) not in made:
                values = torch.empty_like(parameter, device=device).detach()
                fill(f"{prefix}.{name}" if prefix else name, values)
                made[id(parameter)] = nn.Parameter(values, requires_grad=parameter.requires_grad)
            owner._parameters[name] = made[id(parameter)]
        if isinstance(owner, nn.RNNBase):
            owner._flat_weights = [getattr(owner, name) for name in owner._flat_weights_names]


def materialise(
    module: nn.Module,
    *,
    seed: int = 0,
    device: torch.device = HOST,
    notice: Callable[[str], None] | None = None,
) -> nn.Module:
    """Give a module on meta its initial values on one device: those that any layout gives it, by name.

    Args:
        module: Changed in place; what is real already stays.
        seed: Decides what is drawn.
        device: Where it will live.
        notice: Told what isn't known.

    Raises:
        LayoutError: Nobody fills one of its tensors.
    """
    if not has_meta(module):
        return module.to(device)
    initial = InitialValues(module, seed=seed)
    if notice is not None and not initial.was_seen:
        notice(say("initial.unseen", module=type(module).__name__))
    fill_buffers(module, initial)

    def fill(name: str, target: Tensor) -> None:
        initial.fill(name, target, ranges=everything(target.shape))

    fill_parameters(module, fill, device=device)
    return module.to(device)
