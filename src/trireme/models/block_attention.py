"""Attention for CPUs: blocks of queries against only the keys they can see, as plain matrix products.

Keys after a block and before its oldest document are never touched, so packed short documents cost what
they cost apart. Probabilities are made again in backward, by the same operations, instead of kept.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from trireme.models.precision import statistics_dtype, without_autocast
from trireme.models.visibility import Block, Visibility


def block_attention(q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor, visibility: Visibility) -> Tensor:
    """Attend as ``attention.attend`` says; result ``[B, T, H, K]``.

    Query heads that share a key head are laid beside each other, so that one product serves them all.
    """
    B, T, H, K = q_BTHK.shape
    G = k_BTGK.shape[2]
    q = q_BTHK.view(B, T, G, H // G, K).permute(0, 2, 1, 3, 4).reshape(B * G, T, H // G, K)
    k, v = (x.transpose(1, 2).reshape(B * G, T, K) for x in (k_BTGK, v_BTGK))
    mixed: Tensor = cast(Any, _BlockAttention).apply(q, k, v, visibility)
    return mixed.view(B, G, T, H // G, K).permute(0, 2, 1, 3, 4).reshape(B, T, H, K)


class _BlockAttention(torch.autograd.Function):
    """q ``[N, T, R, K]``, k and v ``[N, T, K]``: N sequences times key heads, R query heads a key head."""

    @staticmethod
    @without_autocast
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, visibility: Visibility) -> Tensor:
        mixed = torch.empty_like(q)
        for block in visibility.blocks(q.shape[1]):
            queries, keys = slice(block.first, block.last), slice(block.key, block.last)
            rows = torch.bmm(_probabilities(q, k, block, visibility), v[:, keys])
            mixed[:, queries] = rows.view_as(mixed[:, queries])
        ctx.save_for_backward(q, k, v)
        ctx.visibility = visibility
        return mixed

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v = ctx.saved_tensors
        exact = statistics_dtype(q)
        grad = grad.contiguous()
        grad_q = torch.empty_like(q)
        grad_k, grad_v = torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)
        for block in ctx.visibility.blocks(q.shape[1]):
            queries, keys = slice(block.first, block.last), slice(block.key, block.last)
            seen = _probabilities(q, k, block, ctx.visibility)
            rows = grad[:, queries].flatten(1, 2)
            grad_v[:, keys] += torch.bmm(seen.transpose(1, 2), rows)
            grad_seen = torch.bmm(rows, v[:, keys].transpose(1, 2))
            grad_score = torch.ops.aten._softmax_backward_data(grad_seen, seen, -1, seen.dtype)
            grad_q[:, queries] = torch.bmm(grad_score, k[:, keys]).view_as(grad_q[:, queries])
            grad_k[:, keys] += torch.bmm(grad_score.transpose(1, 2), q[:, queries].flatten(1, 2))
        scale = _scale(q)
        return grad_q.mul_(scale), grad_k.mul_(scale).to(k.dtype), grad_v.to(v.dtype), None


def _probabilities(q: Tensor, k: Tensor, block: Block, visibility: Visibility) -> Tensor:
    """Softmax of the block's scores; ``[N, queries * R, keys]``, rows ordered by query, then head."""
    rows = q[:, block.first : block.last].flatten(1, 2)
    keys = k[:, block.key : block.last].transpose(1, 2)
    scores = torch.bmm(rows, keys)
    hidden = visibility.hidden(block, dtype=q.dtype)
    B, Q, S = hidden.shape
    by_row = scores.view(B if B > 1 else 1, -1, Q, q.shape[2], scores.shape[-1])
    by_row.mul_(_scale(q))[..., -S:].add_(hidden[:, None, :, None])
    return scores.softmax(-1)


def _scale(q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1])
