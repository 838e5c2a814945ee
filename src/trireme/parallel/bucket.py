"""Gradients side by side in one flat tensor, so that one collective sums many of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.parallel.traffic import Handle

BUCKET_BYTES = 25 * 2**20
"""Large enough that a collective's latency is small beside its time, small enough that the first starts early."""


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Parameters whose gradients are summed in one collective.

    Attributes:
        indices: Which parameters, in the order in which their gradients become ready.
        flat: All gradients one after the other; a parameter's view has its shape and strides.
        is_plain: Whether they must be summed as they are.
    """

    index: int
    names: tuple[str, ...]
    indices: tuple[int, ...]
    flat: Tensor
    views: tuple[Tensor, ...]
    group: dist.ProcessGroup | None
    is_plain: bool = False
    waiting_for: set[int] = field(default_factory=set)

    @property
    def num_bytes(self) -> int:
        """Size of what is summed."""
        return self.flat.numel() * self.flat.element_size()


Exchange = Callable[[Bucket], Handle]
"""Sums a bucket's ``flat`` over its group, in place; what it returns is waited for. Compression goes here."""


def all_reduce_bucket(bucket: Bucket) -> Handle:
    """Sum a bucket as it is."""
    handle: Handle = dist.all_reduce(bucket.flat, group=bucket.group, async_op=True)
    return handle


def divide_into_buckets(
    parameters: Sequence[nn.Parameter],
    *,
    order: Sequence[int],
    dtype: torch.dtype | None,
    bucket_bytes: int,
    plain: Collection[int] = (),
) -> list[list[int]]:
    """Give the members of each bucket, buckets in the order in which they become full.

    Args:
        parameters: Numbered by ``order``.
        order: Numbers in the order in which gradients become ready.
        dtype: What is summed in; None: each gradient's own, then each format has buckets of its own.
        bucket_bytes: A bucket is closed when it holds at least so much.
        plain: Those that must be summed as they are; they have buckets of their own.
    """
    open_buckets: dict[tuple[torch.dtype, torch.device, bool], list[int]] = {}
    sizes: dict[tuple[torch.dtype, torch.device, bool], int] = {}
    closed: list[list[int]] = []
    for index in order:
        parameter = parameters[index]
        key = (dtype or parameter.dtype, parameter.device, index in plain)
        open_buckets.setdefault(key, []).append(index)
        sizes[key] = sizes.get(key, 0) + parameter.numel() * key[0].itemsize
        if sizes[key] >= bucket_bytes:
            closed.append(open_buckets.pop(key))
            sizes[key] = 0
    place = {index: position for position, index in enumerate(order)}
    return closed + sorted(open_buckets.values(), key=lambda members: place[members[-1]])


def build_bucket(
    index: int,
    members: Sequence[int],
    *,
    parameters: Sequence[tuple[str, nn.Parameter]],
    dtype: torch.dtype | None,
    group: dist.ProcessGroup | None,
    is_plain: bool = False,
    block: int = 1,
    multiple: int = 1,
) -> Bucket:
    """Allocate one bucket; parameters begin at multiples of ``block``, and the whole is one of ``multiple``."""
    chosen = [parameters[member] for member in members]
    first = chosen[0][1]
    size = _up_to(sum(_up_to(parameter.numel(), block) for _, parameter in chosen), multiple)
    flat = torch.zeros(size, dtype=dtype or first.dtype, device=first.device)
    views, offset = [], 0
    for _, parameter in chosen:
        views.append(_view_like(flat[offset : offset + parameter.numel()], parameter))
        offset += _up_to(parameter.numel(), block)
    return Bucket(
        index=index,
        names=tuple(name for name, _ in chosen),
        indices=tuple(members),
        flat=flat,
        views=tuple(views),
        group=group,
        is_plain=is_plain,
    )


def _up_to(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _view_like(flat: Tensor, parameter: Tensor) -> Tensor:
    """Give autograd the strides it would choose itself, or it would copy every gradient once more."""
    packed = torch.empty_like(parameter, device="meta")  # keeps strides of dense tensors, packs others
    return flat.as_strided(parameter.shape, packed.stride(), flat.storage_offset())
