"""The two collectives of ``fully_shard``, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.parallel.traffic import TrafficMeter


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Allocates:
    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Give memory for a collective."""
        return torch.empty(*size, dtype=dtype, device=device)


class CountedAllGather(_Allocates):
    """Gathers a unit's parameters; bytes are those of the whole ones, padding included."""

    def __init__(self, meter: TrafficMeter) -> None:
        self._meter = meter

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work | None:
        """Gather."""
        self._meter.count("all_gather", _num_bytes(output_tensor))
        work: dist.Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class CountedReduceScatter(_Allocates):
    """Sums a unit's gradients; where shards have copies, the all-reduce that FSDP adds is counted as well."""

    def __init__(self, meter: TrafficMeter, *, sums_copies: Callable[[], bool]) -> None:
        self._meter = meter
        self._sums_copies = sums_copies

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Sum and cut."""
        self._meter.count("reduce_scatter", _num_bytes(input_tensor))
        if self._sums_copies():
            self._meter.count("all_reduce", _num_bytes(output_tensor))
        work: dist.Work | None = dist.reduce_scatter_single(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )
        return work
