"""Attention by heads: shards of query heads meet their own key/value heads, whole ones are cut or picked out."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.collective import take
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import global_shape, shard_of, sources_of, with_shard

NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def scaled_dot_product(call: Call) -> Any:
    """``F.scaled_dot_product_attention`` with the head dim sharded; groups of query heads may share a key head."""
    given = {**dict(zip(NAMES, call.args, strict=False)), **call.kwargs}
    q, k, v = given["query"], given["key"], given["value"]
    shard = shard_of(q)
    if shard is None or shard.dim != q.ndim - 3 or len(shard.split.parts) != 1 or shard.split.keeps_some:
        raise call.refuse(*([k, v] if shard is None else [q]))
    k, v = (call.interpreter.positions_met(each) for each in (k, v))
    groups = _grouped(call, q, k)
    result_sources = sources_of(q, k, v, given.get("attn_mask"))
    dropout_p = given.get("dropout_p", 0.0)
    local = {
        **given,
        "key": _heads(call, k, shard.split, groups, k.ndim - 3),
        "value": _heads(call, v, shard.split, groups, v.ndim - 3),
        "attn_mask": _mask(call, given.get("attn_mask"), shard.split),
        "enable_gqa": groups > 1 and shard_of(k) is not None,
    }
    mixed = _with_dropout(call, local, shard) if dropout_p else F.scaled_dot_product_attention(**local)
    return with_shard(mixed, Shard(dim=shard.dim, split=shard.split, sources=result_sources, unit=shard.unit))


def declared(call: Call, head_dim: int) -> Any:
    """A function that is declared to attend: q, k and v first, heads in ``head_dim`` of each, results like q."""
    q, k, v, *rest = call.args
    shard = shard_of(q)
    dim = head_dim % q.ndim
    if shard is None or shard.dim != dim or len(shard.split.parts) != 1 or shard.split.keeps_some:
        raise call.refuse(*([k, v] if shard is None else [q]))
    k, v = (call.interpreter.positions_met(each) for each in (k, v))
    groups = _grouped(call, q, k, dim)
    merged = Shard(dim=dim, split=shard.split, sources=sources_of(q, k, v), unit=shard.unit)
    own = [_heads(call, each, shard.split, groups, dim) for each in (k, v)]
    return with_shard(call.function(q, *own, *rest, **call.kwargs), merged)


def _grouped(call: Call, q: Tensor, k: Tensor, dim: int = -3) -> int:
    """Give how many query heads share a key head."""
    num_heads, num_kv_heads = global_shape(q)[dim], global_shape(k)[dim]
    if num_heads % num_kv_heads:
        raise call.refuse(k)
    return num_heads // num_kv_heads


def _heads(call: Call, kv: Tensor, split: Split, groups: int, dim: int) -> Tensor:
    """Give the key or value heads that this rank's query heads read."""
    known = shard_of(kv)
    if known is not None:
        if known.dim != dim or known.split.scaled(groups) != split:
            raise call.refuse_to_cut(kv)
        return kv
    if groups == 1:
        return call.interpreter.share(kv, dim, split)
    # Fewer key heads than ranks: they are whole, and each query head picks its own.
    ((start, length),) = split.ranges(call.interpreter.line.rank)
    wanted = torch.arange(start, start + length, device=kv.device) // groups
    whole: Tensor = call.interpreter.spread(kv)
    return whole.index_select(dim, wanted)


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
