"""What backward needs waits in host memory, tensor by tensor, in buffers that are used again."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from trireme.mesh import host_device, wants_pinned_memory
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.state_home import Transfers


class ActivationOffload:
    """Copies what autograd saves to the host, and back when it is asked for.

    Parameters stay, and views of them; so does what is smaller than ``min_bytes``. Buffers go back to a pool as soon as
    backward has used them; the pool never grows beyond what one step had out at once.

    Args:
        module: Whose parameters are left where they are.
        device: Where it computes.
        min_bytes: Smaller tensors stay.
    """

    def __init__(self, module: nn.Module, *, device: torch.device, min_bytes: int = 2**20) -> None:
        self.transfers = Transfers()
        self._module = module
        self._min_bytes = min_bytes
        self._host, self._pins = host_device(), wants_pinned_memory(device)
        self._free: defaultdict[int, list[Tensor]] = defaultdict(list)
        self._kept: frozenset[int] = frozenset()
        self.pool_bytes = 0

    @contextmanager
    def active(self) -> Iterator[None]:
        """Move what is saved inside."""
        shards = (local_shard(each) for each in self._module.parameters())
        self._kept = frozenset(each.untyped_storage().data_ptr() for each in shards if not each.is_meta)
        with torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack):
            yield

    def _pack(self, tensor: Tensor) -> Any:
        if not self._moves(tensor):
            return tensor
        size = tensor.numel() * tensor.element_size()
        buffer = self._take(size)
        waiting = buffer[:size].view(tensor.dtype).view(tensor.shape)
        started_s = time.perf_counter()
        waiting.copy_(tensor)
        self.transfers.stall_s += time.perf_counter() - started_s
        self.transfers.written_bytes += size
        return _Waiting(self, buffer=buffer, tensor=waiting, device=tensor.device)

    def _unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        started_s = time.perf_counter()
        back: Tensor = packed.tensor.to(packed.device, copy=True)
        self.transfers.stall_s += time.perf_counter() - started_s
        self.transfers.read_bytes += back.numel() * back.element_size()
        return back

    def _moves(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or isinstance(tensor._base, nn.Parameter):
            return False
        if tensor.numel() * tensor.element_size() < self._min_bytes or tensor.is_sparse or tensor.is_meta:
            return False
        return tensor.untyped_storage().data_ptr() not in self._kept

    def _take(self, size: int) -> Tensor:
        rounded = 1 << (size - 1).bit_length() if size < 1 << 20 else -(-size // (1 << 20)) << 20
        free = self._free[rounded]
        if free:
            return free.pop()
        self.pool_bytes += rounded
        return torch.empty(rounded, dtype=torch.uint8, device=self._host, pin_memory=self._pins)

    def give_back(self, buffer: Tensor) -> None:
        """Take a buffer into the pool."""
        self._free[buffer.numel()].append(buffer)


class _Waiting:
    """A tensor on the host; its buffer is free once autograd lets go of it."""

    __slots__ = ("_buffer", "_owner", "device", "tensor")

    def __init__(self, owner: ActivationOffload, *, buffer: Tensor, tensor: Tensor, device: torch.device) -> None:
        self._owner, self._buffer = owner, buffer
        self.tensor, self.device = tensor, device

    def __del__(self) -> None:
        self._owner.give_back(self._buffer)
