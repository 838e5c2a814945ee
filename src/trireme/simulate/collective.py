"""Collectives as the process group meets them: how many, how large, between which ranks; and what equal ranks give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from trireme.errors import VerifyError
from trireme.plan import AXES, Layout, coordinate
from trireme.simulate.torch_private import group_in

_KINDS = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "broadcast_": "broadcast",
    "send": "send",
    "recv_": "receive",
    "recv_any_source_": "receive",
}


class CollectiveCounter:
    """Counts by axis and kind; bytes are those of the larger side, whatever the algorithm then moves."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._axes: dict[str, str] = {}
        self.restart()

    def restart(self) -> None:
        """Forget what was counted."""
        self.calls: Counter[tuple[str, str]] = Counter()
        self.moved_bytes: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, args: Sequence[Any]) -> None:
        """Note one call of an operator of ``c10d``."""
        group = group_in(args)
        if group is None or name not in _KINDS:
            return
        key = (self._axis(group), _KINDS[name])
        self.calls[key] += 1
        self.moved_bytes[key] += max((_bytes_in(value) for value in args), default=0)

    def _axis(self, group: dist.ProcessGroup) -> str:
        """Name the axes along which a group's ranks differ."""
        if group.group_name not in self._axes:
            ranks = dist.get_process_group_ranks(group)
            places = [coordinate(self._layout, rank) for rank in ranks]
            varied = [axis for axis in AXES if len({getattr(place, axis) for place in places}) > 1]
            whole = len(ranks) == self._layout.world_size and len(varied) > 1
            self._axes[group.group_name] = "world" if whole else "+".join(varied) or "self"
        return self._axes[group.group_name]


def _bytes_in(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tree_leaves(value) if isinstance(leaf, Tensor))


def answer_as_equals(name: str, args: Sequence[Any]) -> None:
    """Put into real tensors what a collective gives where every rank hands in what this one does.

    Raises:
        VerifyError: There is no telling.
    """
    group = group_in(args)
    if group is None or name not in _KINDS:
        return
    if name not in _ANSWERS:
        raise VerifyError("simulate.no_answer", name=name)
    _ANSWERS[name](args, group)


def _sum(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    operation = next(value for value in args if _is_operation(value))
    if operation.op() != dist.ReduceOp.SUM:
        return  # the largest or least of equal ones
    for tensor in args[0]:
        tensor.mul_(group.size())


def _is_operation(value: Any) -> bool:
    return isinstance(value, torch.ScriptObject) and value._type().name() == "ReduceOp"  # type: ignore[attr-defined]


def _gather(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    for outputs, tensor in zip(args[0], args[1], strict=True):
        for output in outputs:
            output.copy_(tensor)


def _gather_one(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    args[0].view(group.size(), -1).copy_(args[1].reshape(1, -1))


def _scatter_one(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    args[0].view(-1).copy_(args[1].reshape(group.size(), -1)[group.rank()]).mul_(group.size())


def _exchange(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    output, tensor, sizes = args[0], args[1], [value for value in args if isinstance(value, list)]
    if output.shape != tensor.shape or any(len(set(each)) > 1 for each in sizes):
        raise VerifyError("simulate.no_answer", name="alltoall_base_")
    parts = output.view(group.size(), -1)
    parts.copy_(tensor.reshape(group.size(), -1)[group.rank()].expand_as(parts))


def _receive(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    for tensor in args[0]:
        tensor.fill_(1)  # the one small message that stages exchange by value says: there is a gradient


def _nothing(args: Sequence[Any], group: dist.ProcessGroup) -> None:
    pass


_ANSWERS: dict[str, Callable[[Sequence[Any], dist.ProcessGroup], None]] = {
    "allreduce_": _sum,
    "allgather_": _gather,
    "_allgather_base_": _gather_one,
    "_reduce_scatter_base_": _scatter_one,
    "alltoall_base_": _exchange,
    "broadcast_": _nothing,
    "send": _nothing,
    "recv_": _receive,
}
