"""PowerSGD: a matrix's gradient travels as two thin ones, a step of power iteration on the sum of all ranks.

**Source**: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", 2019, algorithms 1 and 2.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trireme.parallel.bucket import Bucket
from trireme.parallel.feedback import Feedback
from trireme.parallel.link import Link

BASIS = "basis/"
"""Names of kept bases begin with it: they have no scale."""


@dataclass(slots=True, kw_only=True)
class _Matrix:
    """A gradient ``[rows, columns]`` that is a sum of ``rank`` products: this rank's, and its two factors."""

    name: str
    view: Tensor
    own: Tensor
    left: Tensor
    right: Tensor


class LowRankSum:
    """Sums matrices by rank-r factors and the rest as it is, with error feedback. Satisfies ``Summation``."""

    block = 1
    multiple = 1

    def __init__(self, link: Link, *, rank: int, feedback: Feedback, scope: str, warmup_steps: int = 0) -> None:
        self.link = link
        self.rank = rank
        self._feedback = feedback
        self._scope = scope
        self._warmup_steps = warmup_steps

    def sum(self, bucket: Bucket) -> None:
        """Sum; in the first steps as it is."""
        if self._feedback.num_steps < self._warmup_steps:
            self.link.all_reduce(bucket.flat)
            return
        name = f"{self._scope}/{bucket.index}/sent"
        self._feedback.add_to(name, bucket.flat)
        corrected = bucket.flat.clone()
        matrices = list(self._matrices(bucket))
        whole = [view for view in bucket.views if not _is_thin(view, self.rank)]
        self._sum_all([each.left for each in matrices])
        for each in matrices:
            each.left = torch.linalg.qr(each.left).Q
            each.right = each.own.T @ each.left
            each.view.copy_((each.left @ each.right.T).view(each.view.shape))
        self._feedback.leave(name, corrected, bucket.flat)
        self._sum_right(matrices, whole)

    def _matrices(self, bucket: Bucket) -> Iterator[_Matrix]:
        for parameter, view in zip(bucket.names, bucket.views, strict=True):
            if _is_thin(view, self.rank):
                own = view.reshape(view.shape[0], -1).clone()
                right = self._basis(f"{BASIS}{parameter}", own)
                yield _Matrix(name=f"{BASIS}{parameter}", view=view, own=own, left=own @ right, right=right)

    def _basis(self, name: str, own: Tensor) -> Tensor:
        """Give the last update's right factor; the first one is random, the same on every rank."""
        kept = self._feedback.get(name)
        if kept is not None:
            return kept
        draw = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.randn(own.shape[1], self.rank, generator=draw, dtype=torch.float64).to(own)

    def _sum_right(self, matrices: list[_Matrix], whole: list[Tensor]) -> None:
        """Sum the right factors and what isn't factored; the sum of products is then that of all ranks."""
        self._sum_all([*(each.right for each in matrices), *whole])
        for each in matrices:
            each.view.copy_((each.left @ each.right.T).view(each.view.shape))
            self._feedback.keep(each.name, each.right)

    def _sum_all(self, tensors: list[Tensor]) -> None:
        if not tensors:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self.link.all_reduce(flat)
        for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(part.view(tensor.shape))


def _is_thin(view: Tensor, rank: int) -> bool:
    """Whether two factors are fewer numbers than the matrix."""
    if view.dim() < 2 or not view.numel():
        return False
    rows = view.shape[0]
    columns = view.numel() // rows
    return (rows + columns) * rank < view.numel() and min(rows, columns) >= rank
