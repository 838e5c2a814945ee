"""One forward of the whole module of which only a part computes: its calls are numbered alike on every rank.

A call counts if it meets parameters or what was made from them. Such a call computes while the part that is wanted
runs, and gives absent tensors otherwise. Calls on inputs and buffers alone (masks, positions) aren't counted: they
compute everywhere.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from trireme.interpret import count_unmade, is_hollow
from trireme.parallel.absent import Absence, vanish
from trireme.parallel.chance import common_number, draws
from trireme.parallel.gate import Gate, gate_of
from trireme.parallel.tracing_private import FakeTensor, bare_function_calls, watched_functions
from trireme.parallel.value import ValueId, is_absent, is_shard, map_tensors, number, set_free, tensors_in, value_of

_WRITES = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"}
    | {"__ior__", "__iand__", "__ixor__", "__ilshift__", "__irshift__", "__imatmul__", "__set__"}
)


class Walk(TorchFunctionMode):
    """The calls of one forward.

    Attributes:
        is_active: Whether what is called now computes on this rank.
        calls: Counted so far.
        digest: Of the names of the calls counted so far.
        held: Names of the tensors that the module keeps from one forward to the next, by identity. They are never
            absent: a stage writes to its own, and one that doesn't compute leaves them alone.
    """

    def __init__(
        self,
        absence: Absence,
        *,
        held: Mapping[int, str],
        twin_of: Callable[[nn.Parameter], Tensor] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.twin_of = twin_of or absence.like
        self.absence = absence
        self.held = held
        self.is_active = False
        self.calls = 0
        self.digest = 0
        self.seed = seed
        self._drawn = 0
        self._is_aside = False
        self._watching: list[Any] = []

    def __enter__(self) -> Any:
        watching = watched_functions(self._apply, self._approach)
        watching.__enter__()
        self._watching.append(watching)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._watching.pop().__exit__(*error)

    def leave(self) -> None:
        """Stop being asked, while still being told of autograd functions."""
        super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def come_back(self) -> None:
        """Be asked again."""
        super().__enter__()  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if self._is_aside:
            return func(*args, **(kwargs or {}))
        return self.meet(func, args, kwargs or {}, name=getattr(func, "__name__", type(func).__name__))

    def _apply(self, before: Callable[..., Any], function: Any, args: tuple[Any, ...]) -> Any:
        if self._is_aside:
            return before(function, *args)
        return self.meet(functools.partial(before, function), args, {}, name=function.__qualname__)

    def _approach(self, function: Any) -> None:
        gate = gate_of(function) if isinstance(function, nn.Module) and not self._is_aside else None
        if gate is not None:
            self.approach(gate)

    def approach(self, gate: Gate) -> None:
        """Take note that a block is about to be run by recomputation, which keeps the arguments for itself first."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Let calls pass unseen."""
        before, self._is_aside = self._is_aside, True
        try:
            yield
        finally:
            self._is_aside = before

    def meet(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *, name: str) -> Any:
        """Make a call, here or absently."""
        used = [tensor for tensor in tensors_in(args, kwargs) if depends(tensor)]
        written = written_by(name, args, kwargs)
        if written is not None and id(written) in self.held:
            return self._write_held(func, args, kwargs, name=name, used=used, written=written)
        if not used and not draws(func, args, kwargs):
            return self._free(func, args, kwargs)
        if not used:
            drawn = self.common_number(func, args, kwargs)
            if drawn is not None:
                return drawn
        with self.aside():
            result = func(*args, **kwargs) if self.is_active else self._absently(func, args, kwargs)
        return self._counted(name, used, args, kwargs, result)

    def common_number(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Tensor | None:
        """Draw one number as every stage draws it; None if more are asked for."""
        self._drawn += 1
        with self.aside():
            return common_number(func, args, kwargs, seed=self.seed + self._drawn)

    def _write_held(
        self,
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        name: str,
        used: list[Tensor],
        written: Tensor,
    ) -> Any:
        if used:
            self.count(name)
            self.used(used, name)
            self.gathered(written)
        self.wrote(written)
        if not self.is_active:
            return written
        with self.aside():
            return func(*args, **kwargs)

    def _free(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        with self.aside():
            result = func(*args, **kwargs)
        if isinstance(result, (FakeTensor, tuple, list)):
            for tensor in tensors_in(result):
                if isinstance(tensor, FakeTensor) and not is_hollow(tensor):
                    set_free(tensor)
        return result

    def _absently(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        count_unmade(func, args, kwargs)
        met, named = map_tensors(args, self.stand_in), map_tensors(dict(kwargs), self.stand_in)
        with bare_function_calls():
            if any(isinstance(tensor, FakeTensor) for tensor in tensors_in(met, named)):
                return func(*met, **named)
            with self.absence.mode:
                return func(*met, **named)

    def stand_in(self, tensor: Tensor) -> Tensor:
        """Give what takes a tensor's place where nothing computes: parameters and shards are absent there."""
        if isinstance(tensor, FakeTensor) and not is_hollow(tensor):
            return tensor
        if isinstance(tensor, nn.Parameter):
            return self.twin_of(tensor)
        is_elsewhere = value_of(tensor) is not None or is_shard(tensor) or is_hollow(tensor)
        return self.absence.like(tensor) if is_elsewhere else tensor

    def _counted(
        self, name: str, used: list[Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> Any:
        written = written_by(name, args, kwargs)
        made = list(tensors_in(result)) if written is None else _with_base(written)
        if not made:
            return result  # a size or a type: asking for it uses nothing
        self.count(name)
        self.used(used, name)
        for place, tensor in enumerate(made):
            value = ValueId(self.calls, place)
            if not self.is_active and (not isinstance(tensor, FakeTensor) or is_hollow(tensor)):
                vanish(tensor, self.absence.like(tensor), value)
            number(tensor, value)
            self.made(tensor, value, name)
        return result if written is None or not isinstance(result, Tensor) else written

    def count(self, name: str) -> None:
        """Count a call."""
        self.calls += 1
        self.digest = zlib.crc32(name.encode(), self.digest)

    def used(self, tensors: list[Tensor], name: str) -> None:
        """Take note that a call needs these."""

    def wrote(self, held: Tensor) -> None:
        """Take note that a call writes to what the module keeps."""

    def gathered(self, held: Tensor) -> None:
        """Take note that what is written to something the module keeps was made by parameters."""

    def made(self, tensor: Tensor, value: ValueId, name: str) -> None:
        """Take note of a new value."""


def depends(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter or made from one."""
    return value_of(tensor) is not None or is_absent(tensor) or isinstance(tensor, nn.Parameter)


def written_by(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Give the tensor that a call writes to, None if it makes a new one."""
    out = kwargs.get("out")
    if isinstance(out, Tensor):
        return out
    in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace") is True
    return args[0] if in_place and args and isinstance(args[0], Tensor) else None


def _with_base(written: Tensor) -> list[Tensor]:
    """Who writes to a view writes to what it shows; that is told once it depends on parameters."""
    base = written._base
    return [written] if base is None or depends(base) else [written, base]
