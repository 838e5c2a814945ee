"""What a simulated rank needs of torch and torch doesn't promise: a fake group, FSDP's memory, work handles."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._meta_registrations as _registrations
import torch.distributed.fsdp._fully_shard._fsdp_param as fsdp_param
import torch.distributed.fsdp._fully_shard._fsdp_param_group as fsdp_param_group
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

meta_registrations: Any = _registrations

__all__ = [
    "FakeTensor",
    "TorchDispatchMode",
    "fake_world",
    "group_in",
    "in_other_fake",
    "instant_sends",
    "storage_id",
    "storages_resized",
]


@contextmanager
def fake_world(*, rank: int, num_ranks: int) -> Iterator[None]:
    """Be one of many ranks of which the others don't exist: what is sent is gone, what is received is left as it is."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=num_ranks)
    try:
        with _numbered_apart():
            yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _numbered_apart() -> Iterator[None]:
    """Let fake collectives draw ids from a generator of their own: from Python's it would look like the user's draw."""
    before = meta_registrations.random
    meta_registrations.random = random.Random(0)
    try:
        yield
    finally:
        meta_registrations.random = before


def group_in(args: Any) -> dist.ProcessGroup | None:
    """Give the process group among the arguments of a collective's operator."""
    for value in args:
        if isinstance(value, torch.ScriptObject) and value._type().name() == "ProcessGroup":  # type: ignore[attr-defined]
            group: dist.ProcessGroup = dist.ProcessGroup.unbox(value)
            return group
    return None


def in_other_fake() -> bool:
    """Whether somebody works out shapes by the way: torch asks fake modes after all others, wherever they stand."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return mode is not None or torch._C._meta_in_tls_dispatch_include()


def storage_id(tensor: Tensor) -> int:
    """Give what all views of one piece of memory have in common."""
    return int(tensor.untyped_storage()._cdata)


@contextmanager
def storages_resized(tell: Callable[[Tensor], None]) -> Iterator[None]:
    """Hear of the whole parameters that FSDP gives memory to and takes it from, which no operator shows."""
    allocate, free = fsdp_param.alloc_storage, fsdp_param.free_storage

    def allocated(tensor: Tensor) -> None:
        allocate(tensor)
        tell(tensor)

    def freed(tensor: Tensor) -> None:
        free(tensor)
        tell(tensor)

    places = [(fsdp_param, "alloc_storage", allocated), (fsdp_param, "free_storage", freed)]
    places += [(fsdp_param_group, "alloc_storage", allocated), (fsdp_param_group, "free_storage", freed)]
    before = [(module, name, getattr(module, name)) for module, name, _ in places if hasattr(module, name)]
    for module, name, function in places:
        if hasattr(module, name):
            setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


class _Sent:
    """A message that has arrived as soon as it was sent."""

    def wait(self) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """It is."""
        return True


@contextmanager
def instant_sends() -> Iterator[None]:
    """Have messages arrive as soon as they are sent; a fake group's never say that they have."""
    send = dist.isend

    def isend(*args: Any, **kwargs: Any) -> _Sent:
        send(*args, **kwargs)
        return _Sent()

    dist.isend = isend  # type: ignore[assignment]
    try:
        yield
    finally:
        dist.isend = send
