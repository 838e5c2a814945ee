"""What torch runs while a module's forward only pretends to: every call, the memory it touches, what backward keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from trireme.parallel.capture import storage_key
from trireme.parallel.tracing_private import FakeTensorMode, memory_key, pytree, quiet_fakes

Call = Callable[[nn.Module, Mapping[str, Tensor]], Any]
"""How a module is called with a batch."""


class Seen(NamedTuple):
    """A tensor as a call met it: the memory it lies in, and its shape there."""

    storage: int
    shape: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the view."""
        count = 1
        for length in self.shape:
            count *= length
        return count


@dataclass(slots=True, kw_only=True)
class Ran:
    """One call: its name, the module that made it, what went in, came out and is kept for backward."""

    name: str
    module: str
    options: tuple[Any, ...]
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...]
    kept: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Memory:
    """A piece of memory: how many numbers, of which format, and the call that made it (-1: it was there before)."""

    numel: int
    dtype: torch.dtype
    made: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One forward.

    ``params`` gives the names of the parameters and buffers that lie in a piece of memory, first name first;
    ``entered`` where each block began, as (path, number of calls before).
    """

    ran: tuple[Ran, ...]
    memory: Mapping[int, Memory]
    params: Mapping[int, tuple[str, ...]]
    shapes: Mapping[int, tuple[int, ...]]
    trained: frozenset[int]
    outputs: tuple[Seen, ...]

    def is_trained(self, storage: int) -> bool:
        """Whether it is a parameter, no buffer."""
        return storage in self.trained


class _Recorder(TorchDispatchMode):
    """Notes every call that makes something new; views make nothing."""

    def __init__(self, fixed: Mapping[int, tuple[str, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ran: list[Ran] = []
        self.memory: dict[int, Memory] = {}
        self.fixed = fixed
        self.modules: list[str] = []
        self.alive: list[Any] = []
        self.waiting: list[int] = []
        self.same: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given, made = _tensors((args, kwargs)), _tensors(result)
        if self._is_cast_param(func, given, made):
            return result
        inputs, outputs = tuple(self.see(each) for each in given), tuple(self.see(each, new=True) for each in made)
        known = {each.storage for each in inputs}
        is_view = bool(outputs) and all(each.storage in known for each in outputs)
        if not outputs or (is_view and not func._schema.is_mutable):
            return result
        ran = Ran(
            name=str(func.overloadpacket).removeprefix("aten."),
            module=self.modules[-1] if self.modules else "",
            options=_options((args, kwargs)),
            inputs=inputs,
            outputs=outputs,
        )
        # What is kept of inputs is announced before the call, what is kept of results after it.
        later = [storage for storage in self.waiting if storage not in known]
        ran.kept += [storage for storage in self.waiting if storage in known]
        if self.ran:
            self.ran[-1].kept += later
        self.waiting.clear()
        self.ran.append(ran)
        return result

    def _is_cast_param(self, func: Any, given: list[Tensor], made: list[Tensor]) -> bool:
        """A parameter in another format or order is that parameter."""
        if str(func.overloadpacket) not in _SAME or len(given) != 1 or given[0] is made[0]:
            return False
        source = self.see(given[0]).storage
        if source not in self.fixed:
            return False
        self.alive.append(made[0].untyped_storage())
        self.same[memory_key(made[0])] = source
        return True

    def see(self, tensor: Tensor, *, new: bool = False) -> Seen:
        """Give a tensor's memory a number that stays its own."""
        key = memory_key(tensor)
        key = self.same.get(key, key)
        if key not in self.memory:
            self.alive.append(tensor.untyped_storage())
            size = tensor.untyped_storage().nbytes() // tensor.element_size()
            made = len(self.ran) if new and key not in self.fixed else -1
            self.memory[key] = Memory(numel=size, dtype=tensor.dtype, made=made)
        return Seen(key, tuple(map(int, tensor.shape)))

    def keep(self, tensor: Tensor) -> Tensor:
        """Note what autograd keeps; parameters are there anyway."""
        seen = self.see(tensor)
        if seen.storage not in self.fixed:
            self.waiting.append(seen.storage)
        return tensor


_SAME = frozenset({"aten._to_copy", "aten.clone"})


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _options(tree: Any) -> tuple[Any, ...]:
    return tuple(leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, bool | int | float | str))


def record(module: nn.Module, batch: Callable[[], Mapping[str, Tensor]], *, call: Call, dtype: torch.dtype) -> Record:
    """Run a forward on tensors without contents, parameters in ``dtype``; the module isn't changed.

    Args:
        module: On any device or meta.
        batch: Makes the inputs; they needn't have contents.
        call: How the module is called.
        dtype: Of parameters and of inputs that are no whole numbers.
    """
    real = batch()
    with quiet_fakes(), FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.enable_grad():
        twins = _twins(module, dtype)
        fixed: dict[int, tuple[str, ...]] = {}
        for name, twin in twins.items():
            fixed[memory_key(twin)] = (*fixed.get(memory_key(twin), ()), name)
        parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        recorder = _Recorder(fixed)
        given = {key: _given(mode, value, dtype) for key, value in real.items()}
        with ExitStack() as stack:
            stack.enter_context(_followed(module, recorder))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(recorder.keep, _unchanged))
            stack.enter_context(recorder)
            shell = _Shell(module, call)
            outputs = torch.func.functional_call(shell, {f"module.{k}": v for k, v in twins.items()}, (given,))
        last = tuple(recorder.see(tensor) for tensor in _tensors(_plain(outputs)))
        if recorder.ran:
            recorder.ran[-1].kept += recorder.waiting
        return Record(
            ran=tuple(recorder.ran),
            memory=recorder.memory,
            params=fixed,
            shapes={memory_key(twin): tuple(twin.shape) for twin in twins.values()},
            trained=frozenset(key for key, names in fixed.items() if parameters & set(names)),
            outputs=last,
        )


class _Shell(nn.Module):
    """A module that calls another as it is to be called."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, batch: Mapping[str, Tensor]) -> Any:
        return self.call(self.module, batch)


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _plain(outputs: Any) -> Any:
    """What a module returned, as containers that can be walked through."""
    if isinstance(outputs, Mapping):
        return dict(outputs)
    return outputs


def _named(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _twins(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors without contents in place of parameters and buffers; tied ones are one."""
    made: dict[Any, Tensor] = {}
    names: dict[str, Tensor] = {}
    for name, tensor in _named(module):
        key = storage_key(tensor)
        if key not in made:
            wanted = dtype if tensor.is_floating_point() else tensor.dtype
            twin = torch.empty(tuple(tensor.shape), dtype=wanted)
            made[key] = twin.requires_grad_(tensor.requires_grad)
        names[name] = made[key]
    return names


def _given(mode: Any, value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, Tensor):
        return value
    twin = mode.from_tensor(value)
    return twin.to(dtype) if value.is_floating_point() else twin


@contextmanager
def _followed(module: nn.Module, recorder: _Recorder) -> Iterator[None]:
    """Tell the recorder whose forward runs."""
    handles: list[Any] = []

    def follow(path: str, each: nn.Module) -> None:
        handles.append(each.register_forward_pre_hook(lambda *_: recorder.modules.append(path), prepend=True))
        handles.append(each.register_forward_hook(lambda *_: _left(recorder)))

    for path, each in module.named_modules():
        follow(path, each)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _left(recorder: _Recorder) -> None:
    recorder.modules.pop()
