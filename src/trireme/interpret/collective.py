"""Collectives that autograd understands, each counted; a group of None computes as if ranks agreed (planning)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.interpret.split import Split
from trireme.interpret.tensor_state import with_other_marks
from trireme.interpret.torch_private import DisableTorchFunction, apply_function


def exchange(function: Any, tensor: Tensor, *args: Any) -> Tensor:
    """Run an autograd function of this room: unseen by all axes, whose shards stay what they were."""
    with DisableTorchFunction():
        result: Tensor = apply_function(function, tensor, *args)
    return with_other_marks(result, tensor)


@dataclass(slots=True, kw_only=True)
class CollectiveCount:
    """Calls and bytes (of one rank's tensor, whole for an all-gather) by kind."""

    calls: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, tensor: Tensor) -> None:
        """Count one call on ``tensor``."""
        self.calls[kind] += 1
        self.num_bytes[kind] += tensor.nelement() * tensor.element_size()

    @property
    def total_calls(self) -> int:
        """All calls of all kinds."""
        return sum(self.calls.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The ranks of one axis as seen from one of them."""

    rank: int
    degree: int
    group: dist.ProcessGroup | None
    count: CollectiveCount

    def all_reduce(self, tensor: Tensor, *, where: str, op: Any = dist.ReduceOp.SUM) -> Tensor:
        """Reduce in place and return the tensor."""
        self.count.add(f"all_reduce {where}", tensor)
        if self.group is not None:
            dist.all_reduce(tensor, op=op, group=self.group)
        return tensor

    def all_gather(self, tensor: Tensor, dim: int, split: Split, *, where: str = "forward") -> Tensor:
        """Give the whole tensor from every rank's share; unequal shares travel padded."""
        longest = max(split.length(rank) for rank in range(self.degree))
        padded = _padded(tensor, dim, longest)
        shares = [torch.empty_like(padded) for _ in range(self.degree)]
        if self.group is None:
            shares = [padded] * self.degree
        else:
            dist.all_gather(shares, padded, group=self.group)
        whole = _assembled(shares, dim, split)
        self.count.add(f"all_gather {where}", whole)
        return whole

    def all_gather_equal(self, tensor: Tensor, dim: int) -> Tensor:
        """Give every rank's tensor of one shape, joined along ``dim`` in the order of ranks; no gradient passes."""
        shares = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(self.degree)]
        if self.group is None:
            shares = [tensor] * self.degree
        else:
            dist.all_gather(shares, tensor.contiguous(), group=self.group)
        joined = torch.cat(shares, dim)
        self.count.add("all_gather forward", joined)
        return joined


def _padded(tensor: Tensor, dim: int, length: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] = length - shape[dim]
    return torch.cat((tensor, tensor.new_zeros(shape)), dim).contiguous()


def _assembled(shares: list[Tensor], dim: int, split: Split) -> Tensor:
    pieces, used = [], [0] * len(shares)
    for part in split.parts:
        if len(part) == 1:
            pieces.append(shares[0].narrow(dim, used[0], part[0]))
            used = [place + part[0] for place in used]
            continue
        for rank, size in enumerate(part):
            pieces.append(shares[rank].narrow(dim, used[rank], size))
            used[rank] += size
    return torch.cat(pieces, dim)


def take(tensor: Tensor, dim: int, split: Split, rank: int) -> Tensor:
    """Give one rank's share of a whole tensor."""
    pieces = [tensor.narrow(dim, start, length) for start, length in split.ranges(rank)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim)


def spread(tensor: Tensor, line: Line) -> Tensor:
    """Let a replicated tensor meet shards: itself forward, sum of the ranks' gradients backward."""
    return exchange(_Spread, tensor, line)


def sum_partial(tensor: Tensor, line: Line) -> Tensor:
    """Sum the ranks' partial results: all-reduce forward, itself backward."""
    return exchange(_SumPartial, tensor, line)


def gather(tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
    """Make a sharded tensor whole on every rank; backward keeps this rank's share."""
    return exchange(_Gather, tensor, dim, split, line)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, line: Line) -> Tensor:
        ctx.line = line
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        summed = grads[0].clone(memory_format=torch.contiguous_format)
        return ctx.line.all_reduce(summed, where="backward"), None


class _SumPartial(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, line: Line) -> Tensor:
        return line.all_reduce(tensor.clone(memory_format=torch.contiguous_format), where="forward")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, split: Split, line: Line) -> Tensor:
        ctx.place = dim, split, line.rank, line.degree
        return line.all_gather(tensor, dim, split)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        dim, split, rank, degree = ctx.place
        return scale_kept(take(grads[0], dim, split, rank), dim, split, rank, 1.0 / degree), None, None, None


def scale_kept(tensor: Tensor, dim: int, split: Split, rank: int, factor: float) -> Tensor:
    """Scale the segments of a local share that all ranks hold."""
    scaled = tensor.clone(memory_format=torch.contiguous_format)
    used = 0
    for part in split.parts:
        length = part[0] if len(part) == 1 else part[rank]
        if len(part) == 1:
            scaled.narrow(dim, used, length).mul_(factor)
        used += length
    return scaled


def kept_by_all(tensor: Tensor, line: Line) -> Tensor:
    """Take a segment that all ranks hold as a whole tensor: its complete gradient is shared out again."""
    return exchange(_KeptByAll, tensor, line)


def parameter_with_kept(parameter: Tensor, dim: int, split: Split, line: Line) -> Tensor:
    """Let a parameter be read whose kept segments get a part of their gradient on each rank: equal parts."""
    return exchange(_ParameterWithKept, parameter, dim, split, line)


class _KeptByAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, line: Line) -> Tensor:
        ctx.line = line
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] / ctx.line.degree, None


class _ParameterWithKept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, dim: int, split: Split, line: Line) -> Tensor:
        ctx.place = dim, split, line.rank, float(line.degree)
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return scale_kept(grads[0], *ctx.place), None, None, None
