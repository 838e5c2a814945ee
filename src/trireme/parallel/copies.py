"""Sums shards over the ranks that hold copies of them, one unit after the other, while backward goes on.

``fully_shard`` sums over copies by itself, as gradients are; this takes its place where they are to be coded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from trireme.parallel.bucket import Bucket, build_bucket
from trireme.parallel.fsdp_private import ShardGroup, local_shard
from trireme.parallel.traffic import Handle, TrafficMeter
from trireme.parallel.wire import Wire


class CopySum:
    """Sums the shards' gradients of units over the ranks with the same shards."""

    def __init__(self, wire: Wire, *, root: nn.Module, plain: Collection[str] = ()) -> None:
        """Send on ``wire`` what the units of ``root`` have; ``plain`` ones travel as they are."""
        self.wire = wire
        self._root = root
        self._names: dict[int, str] = {}
        self._plain = frozenset(plain)
        self._buckets: dict[int, list[Bucket]] = {}
        self._handles: list[Handle] = []
        self._sent: list[tuple[Bucket, list[nn.Parameter]]] = []

    def restart(self) -> None:
        """Begin a step; the parameters are shards."""
        self.wait()
        self._sent.clear()
        self._names = {id(parameter): name for name, parameter in self._root.named_parameters()}

    def send(self, index: int, group: ShardGroup, meter: TrafficMeter) -> None:
        """Hand over a unit's gradients, complete but for the copies."""
        members = [(name, parameter) for name, parameter in self._members(group) if parameter.requires_grad]
        if index not in self._buckets:
            self._buckets[index] = list(self._build(index, members))
        by_name = dict(members)
        for bucket in self._buckets[index]:
            parameters = [by_name[name] for name in bucket.names]
            meter.count("all_reduce", bucket.num_bytes)
            handle = self.wire(bucket, pack=_Packing(bucket, parameters), after=group.reduced)
            meter.watch(handle, device=bucket.flat.device)
            self._handles.append(handle)
            self._sent.append((bucket, parameters))

    def wait(self) -> None:
        """Return when nothing is under way."""
        for handle in self._handles:
            handle.wait()
        self._handles.clear()

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for all sums and leave them in the gradients."""
        self.wait()
        for bucket, parameters in self._sent:
            for parameter, view in zip(parameters, bucket.views, strict=True):
                if parameter.grad is not None:
                    local_shard(parameter.grad).copy_(view)
        self._sent.clear()

    def _members(self, group: ShardGroup) -> Iterator[tuple[str, nn.Parameter]]:
        for parameter in group.parameters:
            yield self._names[id(parameter)], parameter

    def _build(self, index: int, members: Sequence[tuple[str, nn.Parameter]]) -> Iterator[Bucket]:
        for is_plain in (False, True):
            chosen = [
                (name, cast(nn.Parameter, local_shard(parameter)))
                for name, parameter in members
                if (name in self._plain) == is_plain and local_shard(parameter).numel()
            ]
            if not chosen:
                continue
            way = self.wire.plain if is_plain else self.wire.summation
            yield build_bucket(
                2 * index + is_plain,
                range(len(chosen)),
                parameters=chosen,
                dtype=wide_dtype([shard for _, shard in chosen]),
                group=None,
                is_plain=is_plain,
                block=way.block,
                multiple=way.multiple,
            )


class _Packing:
    """Fills a bucket from its parameters' gradients."""

    def __init__(self, bucket: Bucket, parameters: Sequence[nn.Parameter]) -> None:
        self._bucket, self._parameters = bucket, parameters

    def __call__(self) -> None:
        for parameter, view in zip(self._parameters, self._bucket.views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(local_shard(parameter.grad))


def wide_dtype(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """Give fp32 where a tensor has fewer digits, for what a code leaves out must not be lost; None: each its own."""
    return torch.float32 if any(each.dtype.itemsize < 4 for each in tensors) else None
