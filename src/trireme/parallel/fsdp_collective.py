"""The two collectives of ``fully_shard``, counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from trireme.parallel.codec import Codec
from trireme.parallel.coded import scatter_coded
from trireme.parallel.feedback import Feedback
from trireme.parallel.link import Link
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
        self._meter.count("all_gather", _num_bytes(output_tensor), degree=dist.get_world_size(group))
        with self._meter.blocked(output_tensor.device):
            work: dist.Work | None = dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)
        return work


class CountedReduceScatter(_Allocates):
    """Sums a unit's gradients; where shards have copies, the all-reduce that FSDP adds is counted as well."""

    def __init__(self, meter: TrafficMeter, *, copies: int, sums_copies: Callable[[], bool]) -> None:
        self._meter = meter
        self._copies = copies
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
        self._meter.count("reduce_scatter", _num_bytes(input_tensor), degree=dist.get_world_size(group))
        if self._copies > 1 and self._sums_copies():
            self._meter.count("all_reduce", _num_bytes(output_tensor), degree=self._copies)
        with self._meter.blocked(output_tensor.device):
            work: dist.Work | None = dist.reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=group, async_op=async_op
            )
        return work


class CodedReduceScatter(CountedReduceScatter):
    """Sums a unit's gradients from codes, with error feedback: the first half of a coded all-reduce."""

    def __init__(
        self, meter: TrafficMeter, *, codec: Codec, feedback: Feedback, name: str, warmup_steps: int = 0
    ) -> None:
        super().__init__(meter, copies=1, sums_copies=lambda: False)
        self._codec = codec
        self._feedback = feedback
        self._name = name
        self._warmup_steps = warmup_steps
        self._link: Link | None = None

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        """Sum and cut."""
        if self._feedback.num_steps < self._warmup_steps:
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        link = self._link = self._link or Link(group)
        self._meter.count("reduce_scatter", _num_bytes(input_tensor))
        with self._meter.blocked(output_tensor.device):
            shares = input_tensor.view(link.degree, -1)
            blocks = functional.pad(shares, (0, -shares.shape[1] % self._codec.block)).view(-1, self._codec.block)
            part = scatter_coded(blocks, link, self._codec, feedback=self._feedback, name=self._name)
            output_tensor.copy_(part.flatten()[: output_tensor.numel()])
        self._meter.add_sent(*link.take())
        return None
