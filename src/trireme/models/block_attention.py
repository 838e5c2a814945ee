"""Attention for CPUs: blocks of queries against only the keys they can see, as plain matrix products.

Keys after a block and before its oldest document are never touched, so packed short documents cost what
they cost apart. Probabilities are made again in backward, by the same operations, instead of kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from trireme.models.precision import statistics_dtype, without_autocast
from trireme.models.visibility import HOST_BLOCK, Visibility


class _Block(NamedTuple):
    """Queries ``first:last`` see keys from ``key`` on."""

    first: int
    last: int
    key: int


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
        for block in _blocks(q.shape[1], visibility):
            seen = _probabilities(q, k, block, visibility)
            rows = torch.bmm(seen, v[:, block.key : block.last])
            mixed[:, block.first : block.last] = rows.view_as(mixed[:, block.first : block.last])
        ctx.save_for_backward(q, k, v, mixed)
        ctx.visibility = visibility
        return mixed

    @staticmethod
    @without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, mixed = ctx.saved_tensors
        exact = statistics_dtype(q)
        grad = grad.contiguous()
        inner = (grad.to(exact) * mixed).sum(-1)
        grad_q = torch.empty_like(q)
        grad_k, grad_v = torch.zeros_like(k, dtype=exact), torch.zeros_like(v, dtype=exact)
        for block in _blocks(q.shape[1], ctx.visibility):
            queries, keys = slice(block.first, block.last), slice(block.key, block.last)
            seen = _probabilities(q, k, block, ctx.visibility)
            grad_rows = grad[:, queries].flatten(1, 2)
            grad_v[:, keys] += torch.bmm(seen.transpose(1, 2), grad_rows)
            grad_seen = torch.bmm(grad_rows, v[:, keys].transpose(1, 2))
            grad_score = (grad_seen - inner[:, queries].reshape(len(q), -1, 1)).mul_(seen).to(q.dtype)
            grad_q[:, queries] = torch.bmm(grad_score, k[:, keys]).view_as(grad_q[:, queries])
            grad_k[:, keys] += torch.bmm(grad_score.transpose(1, 2), q[:, queries].flatten(1, 2))
        scale = _scale(q)
        return grad_q.mul_(scale), grad_k.mul_(scale).to(k.dtype), grad_v.to(v.dtype), None


def _blocks(num_queries: int, visibility: Visibility) -> Iterator[_Block]:
    plain = visibility.document_ids_BT is None
    for number, first in enumerate(range(0, num_queries, HOST_BLOCK)):
        last = min(first + HOST_BLOCK, num_queries)
        yield _Block(first, last, 0 if plain else visibility.block_starts[number])


def _probabilities(q: Tensor, k: Tensor, block: _Block, visibility: Visibility) -> Tensor:
    """Softmax of the block's scores; ``[N, queries * R, keys]``, rows ordered by query, then head."""
    rows = q[:, block.first : block.last].flatten(1, 2)
    keys = k[:, block.key : block.last].transpose(1, 2)
    hidden = _hidden(q, block, visibility)
    return torch.baddbmm(hidden, rows, keys, beta=1.0, alpha=_scale(q)).softmax(-1)


def _hidden(q: Tensor, block: _Block, visibility: Visibility) -> Tensor:
    """Give 0 where a query sees a key and -inf where not; ``[N or 1, queries * R, keys]``."""
    place = torch.arange(block.key, block.last, device=q.device)
    seen = place[None, :] <= place[block.first - block.key :, None]
    if visibility.document_ids_BT is not None:
        seen = seen & (place >= visibility.first_key[:, block.first : block.last, None])
    else:
        seen = seen[None]
    hidden = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill_(~seen, -math.inf)
    heads = q.shape[0] // len(seen) if len(seen) > 1 else 1
    return hidden.repeat_interleave(q.shape[2], dim=1).repeat_interleave(heads, dim=0)


def _scale(q: Tensor) -> float:
    return 1.0 / math.sqrt(q.shape[-1])
