"""Attention of some queries to some keys, with what it takes to put several such results together.

A result is unnormalised: ``mixed`` is a weighted sum of values, ``total`` the sum of the weights, ``highest`` what
was subtracted from the scores before the exponential. Keeping the two apart stays exact where a mask adds the
lowest number instead of minus infinity.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from trireme.interpret.torch_private import flash_backward, flash_forward, has_flash


class Mixed(NamedTuple):
    """``mixed`` ``[B, H, T, K]``; ``highest`` and ``total`` ``[B, H, T]``, in fp32 or better."""

    mixed: Tensor
    highest: Tensor
    total: Tensor


class Gradients(NamedTuple):
    """Of queries, keys, values, and of the mask where it is wanted."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None


def nothing_mixed(query: Tensor, width: int) -> Mixed:
    """Give the result of no keys at all."""
    exact = _exact(query)
    rows = query.shape[:-1]
    return Mixed(
        query.new_zeros((*rows, width), dtype=exact),
        query.new_full(rows, -math.inf, dtype=exact),
        query.new_zeros(rows, dtype=exact),
    )


def _exact(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def join(a: Mixed, b: Mixed) -> Mixed:
    """Put together what the same queries have from two sets of keys."""
    highest = torch.maximum(a.highest, b.highest)
    first, second = _factor(a.highest, highest), _factor(b.highest, highest)
    mixed = a.mixed * first.unsqueeze(-1) + b.mixed * second.unsqueeze(-1)
    return Mixed(mixed, highest, a.total * first + b.total * second)


def _factor(old: Tensor, new: Tensor) -> Tensor:
    return torch.where(old == -math.inf, 0.0, (old - new).exp())


def normalised(result: Mixed, dtype: torch.dtype) -> Tensor:
    """Divide by the weights; queries that see no key get zero."""
    return torch.where(result.total.unsqueeze(-1) > 0, result.mixed / result.total.unsqueeze(-1), 0.0).to(dtype)


def attend(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, causal: bool, scale: float) -> Mixed:
    """Attend; ``causal`` means a square of which the upper right is hidden."""
    if mask is None and has_flash(query, key, value):
        out, lse = flash_forward(query, key, value, causal=causal, scale=scale)
        exact = _exact(query)
        return Mixed(out.to(exact), lse.to(exact), torch.ones_like(lse, dtype=exact))
    scores = _scores(query, key, mask, causal, scale)
    highest = scores.amax(-1)
    weights = _weights(scores, highest)
    return Mixed((weights.to(value.dtype) @ value).to(_exact(query)), highest, weights.sum(-1))


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    scores = (query @ key.transpose(-2, -1)).to(_exact(query)) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(hidden, -math.inf)
    if mask is None:
        return scores
    return scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask


def _weights(scores: Tensor, highest: Tensor) -> Tensor:
    shift = torch.where(highest == -math.inf, 0.0, highest)
    return (scores - shift.unsqueeze(-1)).exp()


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    result: Mixed,
    *,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    wants_mask: bool,
) -> Gradients:
    """Give the gradients by way of these keys, ``out`` and ``result`` being those of all keys together."""
    if mask is None and has_flash(query, key, value):
        lse = result.highest + result.total.log()
        return Gradients(*flash_backward(grad, query, key, value, out, lse, causal=causal, scale=scale), None)
    weights = _weights(_scores(query, key, mask, causal, scale), result.highest)
    chances = torch.where(result.total.unsqueeze(-1) > 0, weights / result.total.unsqueeze(-1), 0.0)
    delta = (grad.to(chances.dtype) * out.to(chances.dtype)).sum(-1, keepdim=True)
    grad_scores = chances * ((grad @ value.transpose(-2, -1)).to(chances.dtype) - delta)
    small = grad_scores.to(query.dtype)
    grad_query, grad_key = small @ key * scale, small.transpose(-2, -1) @ query * scale
    grad_value = chances.to(grad.dtype).transpose(-2, -1) @ grad
    return Gradients(grad_query, grad_key, grad_value, grad_scores if wants_mask else None)
