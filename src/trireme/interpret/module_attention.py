"""``nn.MultiheadAttention``: its fused function, taken apart so that the other rules see every step."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.tensor_state import origin_of, sources_of

NAMES = tuple(inspect.signature(F.multi_head_attention_forward).parameters)


def module_attention(call: Call) -> Any:
    """``F.multi_head_attention_forward`` with its projections cut by heads."""
    given = {**dict(zip(NAMES, call.args, strict=False)), **call.kwargs}
    if not _decided(call, given):
        return NotImplemented
    if given.get("static_k") is not None or given.get("static_v") is not None:
        raise call.refuse(call.args, call.kwargs)
    with call.interpreter:
        return attend_by_steps(given)


def _decided(call: Call, given: dict[str, Any]) -> bool:
    """Cut the input projections by heads, if nothing else is known of them."""
    if sources_of(call.args, call.kwargs):
        return True
    separate = given.get("use_separate_proj_weight", False)
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight") if separate else ("in_proj_weight",)
    decider = call.interpreter.decider
    if decider is None or any(origin_of(given.get(name)) is None for name in names):
        return False
    width = given["embed_dim_to_check"]
    grain = width // given["num_heads"]
    dims = {**dict.fromkeys(names, 0), "in_proj_bias": 0, "bias_k": 2, "bias_v": 2}
    for name, dim in dims.items():
        whole = given.get(name)
        if whole is None:
            continue
        local = decider.fused(whole, dim, (width,) * (whole.shape[dim] // width), grain)
        if local is None:
            return False
        given[name] = local
    return True


def attend_by_steps(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The formula of ``F.multi_head_attention_forward``, step by step, under the interpreter."""
    batched = given["query"].dim() == 3
    q, k, v = _projected(given, batched=batched)
    extra = _more_keys(given)
    k, v = (_with_keys(x, [keys[place] for keys in extra]) for place, x in enumerate((k, v)))
    mask = _joined_mask(given, batched=batched, num_extra=len(extra))
    dropout_p = given["dropout_p"] if given.get("training", True) else 0.0
    weights = None
    if given.get("need_weights", True):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = F.dropout(F.softmax(scores if mask is None else scores + mask, dim=-1), dropout_p)
        mixed = weights @ v
    else:
        causal = _is_causal_alone(given)
        mask = None if causal else mask
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p, is_causal=causal)
    out = mixed.permute(2, 0, 1, 3).flatten(2)
    out = F.linear(out, given["out_proj_weight"], given["out_proj_bias"])
    if weights is not None:
        weights = weights.mean(1) if given.get("average_attn_weights", True) else weights
        weights = weights if batched else weights.squeeze(0)
    return (out if batched else out.squeeze(1)), weights


def _is_causal_alone(given: dict[str, Any]) -> bool:
    """Whether the caller says that the mask is the causal one and nothing else hides keys."""
    return bool(given.get("is_causal")) and given.get("key_padding_mask") is None


def _projected(given: dict[str, Any], *, batched: bool) -> tuple[Tensor, ...]:
    """Give q, k and v as ``[B, H, T, K]``."""
    if given.get("use_separate_proj_weight", False):
        weights = (given["q_proj_weight"], given["k_proj_weight"], given["v_proj_weight"])
    else:
        weights = given["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    inputs = (given["query"], given["key"], given["value"])
    width = given["embed_dim_to_check"] // given["num_heads"]
    heads = []
    for x, weight, bias in zip(inputs, weights, biases, strict=True):
        x_TBD = x if batched else x.unsqueeze(1)
        split = torch.unflatten(F.linear(x_TBD, weight, bias), -1, (given["num_heads"], width))
        heads.append(split.permute(1, 2, 0, 3))
    return tuple(heads)


def _more_keys(given: dict[str, Any]) -> list[tuple[Tensor | None, Tensor | None]]:
    """Give the keys and values that every sequence gets beside its own; None for zeros."""
    num_heads = given["num_heads"]
    extra: list[tuple[Tensor | None, Tensor | None]] = []
    if given.get("bias_k") is not None:
        key, value = (
            torch.unflatten(given[name], -1, (num_heads, -1)).permute(1, 2, 0, 3) for name in ("bias_k", "bias_v")
        )
        extra.append((key, value))
    return [*extra, (None, None)] if given.get("add_zero_attn") else extra


def _with_keys(x: Tensor, extra: list[Tensor | None]) -> Tensor:
    for keys in extra:
        one = torch.zeros_like(x[:, :, :1]) if keys is None else keys.expand(x.shape[0], -1, -1, -1)
        x = torch.cat((x, one), 2)
    return x


def _joined_mask(given: dict[str, Any], *, batched: bool, num_extra: int) -> Tensor | None:
    """Give one additive mask that broadcasts over ``[B, H, T, S]``; keys that were added are seen by all."""
    dtype = given["query"].dtype
    mask = _additive(given.get("attn_mask"), dtype)
    if mask is not None and mask.dim() == 3:
        mask = torch.unflatten(mask, 0, (-1, given["num_heads"]))
    padding = _additive(given.get("key_padding_mask"), dtype)
    if padding is not None:
        padding = (padding if batched else padding.unsqueeze(0))[:, None, None, :]
        mask = padding if mask is None else mask + padding
    return mask if mask is None or not num_extra else F.pad(mask, (0, num_extra))


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
