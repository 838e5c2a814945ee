"""What a module's own code did to fill tensors on the meta device, written down while it did it.

Tensors are told apart by their storage: a parameter, its ``data`` and views of it are one. Nothing is allocated.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from trireme.interpret.torch_private import SKIPS_META, modules_noticed

META = torch.device("meta")
HOST = torch.empty(0).cpu().device
_ASKS_META = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray)


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor, or a view of one: where in which storage its elements lie, counted in elements."""

    storage: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Elements."""
        return torch.Size(self.shape).numel()


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor that had values while the module was built."""

    values: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation. ``function`` is torch's, or one of ``nn.init`` that does nothing on meta.

    Attributes:
        results: Where what it returned lies; None for what is no tensor on meta.
        written: The places it wrote to, of new tensors too.
    """

    index: int
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Place | None, ...]
    written: tuple[Place, ...]

    def places(self) -> list[Place]:
        """Give the places it was given."""
        return [each for each in tree_leaves((self.args, self.kwargs)) if isinstance(each, Place)]


@dataclass(slots=True)
class Storage:
    """One storage: how many elements of which format, and the numbers of the steps that wrote to it."""

    numel: int
    dtype: torch.dtype
    steps: list[int] = field(default_factory=list)


class Recording:
    """Steps in order. Tensors that were met are kept alive: they hold no memory, and their storages stay apart."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.storages: list[Storage] = []
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor was made or written to here."""
        return tensor.untyped_storage()._cdata in self._numbers

    def place_of(self, tensor: Tensor) -> Place:
        """Give a tensor's place; a storage that is met for the first time gets a number."""
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self.storages)
            self._kept.append(storage)
            self.storages.append(Storage(numel=storage.nbytes() // tensor.element_size(), dtype=tensor.dtype))
        return Place(number, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()), tensor.dtype)

    def add(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any, *, out: Any, into: Any) -> None:
        """Write a step down; ``into`` are the tensors that it wrote to, ``out`` is what it returned."""
        results = tuple(self._result(each) for each in tree_leaves(out))
        given = tree_map_only(Tensor, self._argument, (tuple(args), dict(kwargs)))
        written = tuple(dict.fromkeys(map(self.place_of, into)))
        step = Step(
            index=len(self.steps),
            name=name,
            function=function,
            args=given[0],
            kwargs=given[1],
            results=results,
            written=written,
        )
        self.steps.append(step)
        for place in written:
            if step.index not in self.storages[place.storage].steps[-1:]:
                self.storages[place.storage].steps.append(step.index)

    def _result(self, value: Any) -> Place | None:
        return self.place_of(value) if isinstance(value, Tensor) and value.is_meta else None

    def _argument(self, tensor: Tensor) -> Place | Known:
        return self.place_of(tensor) if tensor.is_meta else Known(tensor.detach().clone())


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what reaches tensors on meta."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = recording

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, Tensor) and each.is_meta:
                self._recording.place_of(each)
        out = func(*args, **kwargs)
        made = [each for each in tree_leaves(out) if isinstance(each, Tensor) and each.is_meta]
        new = [each for each in made if not self._recording.knows(each)]
        written = [each for each in _written(func, args, kwargs) if each.is_meta]
        name = func.overloadpacket.__name__
        if (new or written) and not name.startswith(("empty", "new_empty")):
            options = {**kwargs, "dtype": made[0].dtype} if _leaves_format_open(func, args, kwargs) else kwargs
            self._recording.add(name, func, args, options, out=out, into=[*written, *new])
        return out


def _leaves_format_open(function: Any, args: Any, kwargs: Any) -> bool:
    """Whether it makes a tensor from nothing in the default format, which may be another one later."""
    takes = any(argument.name == "dtype" for argument in function._schema.arguments)
    has_tensor = any(isinstance(each, Tensor) for each in tree_leaves((args, kwargs)))
    return takes and not has_tensor and kwargs.get("dtype") is None


def _written(function: Any, args: Any, kwargs: Any) -> list[Tensor]:
    found: list[Tensor] = []
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        found.extend(each for each in tree_leaves(value) if isinstance(each, Tensor))
    return found


class _Calls(TorchFunctionMode):
    """Meets what never becomes an operation on meta: tensors of given numbers, and functions that skip meta."""

    def __init__(self, recording: Recording) -> None:
        super().__init__()
        self._recording = recording

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func == _ASKS_META:
            frame = sys._getframe(1)
            if frame.f_code in SKIPS_META and func(*args, **kwargs):
                self._note(frame)
        if func in _FROM_DATA and not isinstance(args[0] if args else None, Tensor) and _on_meta(kwargs):
            return func(*args, **{**kwargs, "device": HOST}).to(META)
        return func(*args, **kwargs)

    def _note(self, frame: FrameType) -> None:
        names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
        given = {name: value for name, value in frame.f_locals.items() if name in names and name != "generator"}
        tensor = given.pop("tensor")
        function = SKIPS_META[frame.f_code]
        self._recording.add(function.__name__, function, (tensor,), given, out=None, into=[tensor])


def _on_meta(kwargs: Any) -> bool:
    device = kwargs.get("device")
    return torch.get_default_device() == META if device is None else torch.device(device) == META


_RECORDINGS: weakref.WeakKeyDictionary[nn.Module, Recording] = weakref.WeakKeyDictionary()


@contextmanager
def recorded() -> Iterator[Recording]:
    """Build modules inside on the meta device, so that their values can be made later, by parts, on any rank.

    ``with recorded(): model = Model()`` allocates nothing and remembers how parameters and buffers are to be
    filled; ``parallelize`` or ``materialise`` fills them. Without it only what modules can fill again themselves
    (``reset_parameters``, ``init_weights``, Hugging Face's ``_init_weights``) is known.
    """
    recording = Recording()

    def notice(module: nn.Module) -> None:
        _RECORDINGS[module] = recording

    with META, modules_noticed(notice), watching_operations(recording):
        yield recording


@contextmanager
def watching_operations(recording: Recording) -> Iterator[None]:
    """Write down what happens inside to tensors on meta."""
    with _Calls(recording), _Operations(recording):
        yield


def recording_of(module: nn.Module) -> Recording | None:
    """Give the recording that a module was built in."""
    return _RECORDINGS.get(module)
