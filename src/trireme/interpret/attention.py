"""Attention by heads: shards of query heads meet their own key/value heads, whole ones are cut or picked out."""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.collective import take
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import global_shape, origin_of, shard_of, sources_of, with_shard

_NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
_MODULE_NAMES = tuple(inspect.signature(F.multi_head_attention_forward).parameters)


def scaled_dot_product(call: Call) -> Any:
    """``F.scaled_dot_product_attention`` with the head dim sharded; groups of query heads may share a key head."""
    given = {**dict(zip(_NAMES, call.args, strict=False)), **call.kwargs}
    q, k, v = given["query"], given["key"], given["value"]
    shard = shard_of(q)
    if shard is None or shard.dim != q.ndim - 3 or len(shard.split.parts) != 1 or shard.split.keeps_some:
        raise call.refuse(*([k, v] if shard is None else [q]))
    groups = _grouped(call, q, k)
    result_sources = sources_of(q, k, v, given.get("attn_mask"))
    dropout_p = given.get("dropout_p", 0.0)
    local = {
        **given,
        "key": _heads(call, k, shard.split, groups),
        "value": _heads(call, v, shard.split, groups),
        "attn_mask": _mask(call, given.get("attn_mask"), shard.split),
        "enable_gqa": groups > 1 and shard_of(k) is not None,
    }
    mixed = _with_dropout(call, local, shard) if dropout_p else F.scaled_dot_product_attention(**local)
    return with_shard(mixed, Shard(dim=shard.dim, split=shard.split, sources=result_sources, unit=shard.unit))


def _grouped(call: Call, q: Tensor, k: Tensor) -> int:
    """Give how many query heads share a key head."""
    num_heads, num_kv_heads = global_shape(q)[-3], global_shape(k)[-3]
    if num_heads % num_kv_heads:
        raise call.refuse(k)
    return num_heads // num_kv_heads


def _heads(call: Call, kv: Tensor, split: Split, groups: int) -> Tensor:
    """Give the key or value heads that this rank's query heads read."""
    known = shard_of(kv)
    if known is not None:
        if known.dim != kv.ndim - 3 or known.split.scaled(groups) != split:
            raise call.refuse_to_cut(kv)
        return kv
    if groups == 1:
        return call.interpreter.share(kv, kv.ndim - 3, split)
    # Fewer key heads than ranks: they are whole, and each query head picks its own.
    ((start, length),) = split.ranges(call.interpreter.line.rank)
    wanted = torch.arange(start, start + length, device=kv.device) // groups
    whole: Tensor = call.interpreter.spread(kv)
    return whole.index_select(kv.ndim - 3, wanted)


def _mask(call: Call, mask: Tensor | None, split: Split) -> Tensor | None:
    """Cut a mask or bias that differs by head."""
    if mask is None:
        return None
    known = shard_of(mask)
    if known is not None:
        if known.dim != mask.ndim - 3 or known.split != split:
            raise call.refuse(mask)
        return mask
    if mask.ndim >= 3 and mask.shape[-3] == split.total and split.total > 1:
        return call.interpreter.share(mask, mask.ndim - 3, split)
    met: Tensor = call.interpreter.spread(mask)
    return met


def _with_dropout(call: Call, given: dict[str, Any], shard: Shard) -> Tensor:
    """Attend step by step, for the fused kernel can't drop the elements that one device would drop."""
    q, k, v = given["query"], given["key"], given["value"]
    if given["enable_gqa"]:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    scale = given.get("scale") or 1.0 / math.sqrt(q.shape[-1])
    scores = q @ k.transpose(-2, -1) * scale
    mask = given["attn_mask"]
    if given.get("is_causal", False):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    whole = [*scores.shape[: shard.dim], shard.split.total, *scores.shape[shard.dim + 1 :]]
    drawn = F.dropout(torch.ones(whole, dtype=q.dtype, device=q.device), given["dropout_p"], True)
    kept = take(drawn, shard.dim, shard.split, call.interpreter.line.rank)
    mixed: Tensor = (scores.softmax(-1) * kept) @ v
    return mixed


def module_attention(call: Call) -> Any:
    """``nn.MultiheadAttention``: its fused function, taken apart so that the other rules see every step."""
    given = {**dict(zip(_MODULE_NAMES, call.args, strict=False)), **call.kwargs}
    if not _decided(call, given):
        return NotImplemented
    plain = not any(given.get(name) is not None for name in ("bias_k", "bias_v", "static_k", "static_v"))
    if not plain or given.get("add_zero_attn") or given.get("use_separate_proj_weight"):
        raise call.refuse(call.args, call.kwargs)
    with call.interpreter:
        return _attend(given)


def _decided(call: Call, given: dict[str, Any]) -> bool:
    """Cut the input projections by heads, if nothing else is known of them."""
    weight, bias = given.get("in_proj_weight"), given.get("in_proj_bias")
    if sources_of(call.args, call.kwargs):
        return True
    decider = call.interpreter.decider
    if decider is None or origin_of(weight) is None:
        return False
    assert isinstance(weight, Tensor)
    width = weight.shape[0] // 3
    segments, grain = (width,) * 3, width // given["num_heads"]
    local = decider.fused(weight, 0, segments, grain)
    if local is None:
        return False
    given["in_proj_weight"] = local
    if bias is not None:
        given["in_proj_bias"] = decider.fused(bias, 0, segments, grain)
    return True


def _attend(given: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """The formula of ``F.multi_head_attention_forward``, step by step, under the interpreter."""
    batched = given["query"].dim() == 3
    q, k, v = _projected(given, batched=batched)
    mask = _joined_mask(given, batched=batched)
    dropout_p = given["dropout_p"] if given.get("training", True) else 0.0
    weights = None
    if given.get("need_weights", True):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = F.dropout(F.softmax(scores if mask is None else scores + mask, dim=-1), dropout_p)
        mixed = weights @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout_p)
    out = mixed.permute(2, 0, 1, 3).flatten(2)
    out = F.linear(out, given["out_proj_weight"], given["out_proj_bias"])
    if weights is not None:
        weights = weights.mean(1) if given.get("average_attn_weights", True) else weights
        weights = weights if batched else weights.squeeze(0)
    return (out if batched else out.squeeze(1)), weights


def _projected(given: dict[str, Any], *, batched: bool) -> tuple[Tensor, ...]:
    """Give q, k and v as ``[B, H, T, K]``."""
    weights = given["in_proj_weight"].chunk(3)
    biases = (None,) * 3 if given["in_proj_bias"] is None else given["in_proj_bias"].chunk(3)
    inputs = (given["query"], given["key"], given["value"])
    width = given["query"].shape[-1] // given["num_heads"]
    heads = []
    for x, weight, bias in zip(inputs, weights, biases, strict=True):
        x_TBD = x if batched else x.unsqueeze(1)
        split = torch.unflatten(F.linear(x_TBD, weight, bias), -1, (given["num_heads"], width))
        heads.append(split.permute(1, 2, 0, 3))
    return tuple(heads)


def _joined_mask(given: dict[str, Any], *, batched: bool) -> Tensor | None:
    """Give one additive mask that broadcasts over ``[B, H, T, S]``."""
    dtype = given["query"].dtype
    mask = _additive(given.get("attn_mask"), dtype)
    if mask is not None and mask.dim() == 3:
        mask = torch.unflatten(mask, 0, (-1, given["num_heads"]))
    padding = _additive(given.get("key_padding_mask"), dtype)
    if padding is None:
        return mask
    padding = (padding if batched else padding.unsqueeze(0))[:, None, None, :]
    return padding if mask is None else mask + padding


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(mask, -math.inf)
