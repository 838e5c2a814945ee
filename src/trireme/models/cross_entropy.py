"""Cross-entropy over a vocabulary: fp32 statistics without an fp32 copy of the logits.

Rows are taken in pieces that fit the cache of a core; the gradient is written in the logits' own format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.errors import ModelError
from trireme.interpret import met_whole
from trireme.models.precision import prefers_host_kernel, statistics_dtype, without_autocast

IGNORED = -100
"""Label of a position where nothing is learned."""

_HOST_PIECE = 1 << 19
_DEVICE_PIECE = 1 << 28
"""Logits handled at a time: 2 MiB in fp32 on a CPU; few launches and bounded memory elsewhere."""


def token_cross_entropy(outputs: Tensor, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Give the summed cross-entropy of the labelled tokens, in fp32, and their number.

    Shapes:
        outputs: logits ``[B, T, V]``; ``batch["labels"]``: ``[B, T]``, ``-100`` where nothing is learned.

    Raises:
        ModelError: A label is not in the vocabulary (looked at where that costs no wait: on a CPU).
    """
    labels = batch["labels"].reshape(-1).long()
    logits = outputs.reshape(-1, outputs.shape[-1])
    if labels.device.type == "cpu":
        check_labels(labels, vocab_size=logits.shape[-1])
    return summed_cross_entropy(logits, labels), (labels != IGNORED).sum()


def _in_torch(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")


@met_whole(in_torch=_in_torch)
def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Give the summed cross-entropy of ``[N, V]`` logits."""
    loss_sum: Tensor = cast(Any, _CrossEntropy).apply(logits, labels)
    return loss_sum


def check_labels(labels: Tensor, *, vocab_size: int) -> None:
    """Check that every label is ``-100`` or a token of the vocabulary.

    Raises:
        ModelError: One isn't.
    """
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= vocab_size))
    if bool(wrong.any()):
        raise ModelError("model.label_range", label=int(labels[wrong][0]), vocab_size=vocab_size)


class _CrossEntropy(torch.autograd.Function):
    """Keeps the logits alone; probabilities are made again in backward, in pieces."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        exact = statistics_dtype(logits)
        picked = torch.empty(len(logits), dtype=exact, device=logits.device)
        for rows in _pieces(logits):
            chances = torch.log_softmax(logits[rows], dim=-1, dtype=exact)
            picked[rows] = chances.gather(1, labels[rows].clamp_min(0)[:, None]).squeeze(1)
        ctx.save_for_backward(logits, labels)
        return picked.neg_().masked_fill_(labels == IGNORED, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, grad_sum: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        grad = torch.empty_like(logits)
        weight = torch.where(labels == IGNORED, 0.0, grad_sum)[:, None]
        for rows in _pieces(logits):
            piece = torch.softmax(logits[rows], dim=-1, dtype=grad_sum.dtype).mul_(weight[rows])
            grad[rows] = piece.scatter_add_(1, labels[rows].clamp_min(0)[:, None], -weight[rows])
        return grad, None


def _pieces(logits: Tensor) -> Iterator[slice]:
    limit = _HOST_PIECE if prefers_host_kernel(logits) else _DEVICE_PIECE
    step = max(1, limit // logits.shape[-1])
    for first in range(0, len(logits), step):
        yield slice(first, first + step)
