"""Attention while positions are cut: queries stay, keys and values come to them, or heads are exchanged."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.errors import LayoutError
from trireme.interpret.attention import NAMES
from trireme.interpret.call import Call, sharded
from trireme.interpret.context_exchange import (
    Ring,
    causal_attention,
    heads_for_positions,
    positions_for_heads,
    ring_attention,
)
from trireme.interpret.context_tile import Sight
from trireme.interpret.pointwise import met
from trireme.interpret.sequence_collective import gather_positions, take_positions
from trireme.interpret.sequence_split import local_ranges
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import shard_of, sources_of, with_shard

if TYPE_CHECKING:
    from trireme.interpret.context import ContextInterpreter


def scaled_dot_product(call: Call) -> Any:
    """``F.scaled_dot_product_attention`` in all its calling forms."""
    given = {**dict(zip(NAMES, call.args, strict=False)), **call.kwargs}
    if given.get("dropout_p", 0.0):
        return _step_by_step(call, given)
    query, key, value = (given[name] for name in NAMES[:3])
    if not any(_is_cut_along_positions(each) for each in (query, key, value)):
        return _over_batch(call, given)
    if not _is_cut_along_positions(query):
        raise call.refuse(call.args, call.kwargs)
    return _Attention(call, given).run()


def _is_cut_along_positions(tensor: Tensor) -> bool:
    shard = shard_of(tensor)
    return shard is not None and shard.dim == tensor.ndim - 2


def _over_batch(call: Call, given: dict[str, Any]) -> Any:
    """Another dim than the positions is cut: each of its elements attends alone."""
    operands = {name: given[name] for name in (*NAMES[:3], "attn_mask") if given.get(name) is not None}
    first = next(each for each in operands.values() if shard_of(each) is not None)
    shard = shard_of(first)
    assert shard is not None
    from_right = shard.dim - first.ndim
    unlike = [
        each for each in operands.values() if (own := shard_of(each)) is not None
        and (own.dim - each.ndim, own.split) != (from_right, shard.split)
    ]  # fmt: skip
    if unlike or from_right >= -2 or given.get("enable_gqa"):
        raise call.refuse(list(operands.values()))
    local = {**given, **{name: met(call, each, shard, from_right) for name, each in operands.items()}}
    mixed = F.scaled_dot_product_attention(**local)
    return sharded(mixed, shard, dim=mixed.ndim + from_right)


def _step_by_step(call: Call, given: dict[str, Any]) -> Any:
    """Attend by the formula, every step met by its own rule, so that what one device would drop is dropped."""
    query, key, value, mask = (given.get(name) for name in (*NAMES[:3], "attn_mask"))
    assert isinstance(query, Tensor)
    assert isinstance(key, Tensor)
    assert isinstance(value, Tensor)
    with call.interpreter:
        if given.get("enable_gqa"):
            key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], -3) for x in (key, value))
        scores = query @ key.transpose(-2, -1) * (given.get("scale") or 1.0 / math.sqrt(query.shape[-1]))
        if given.get("is_causal", False):
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
        return F.dropout(scores.softmax(-1), given["dropout_p"], True) @ value


class _Attention:
    """One call whose queries are cut along positions."""

    def __init__(self, call: Call, given: dict[str, Any]) -> None:
        self.call, self.given = call, given
        self.interpreter: ContextInterpreter = call.interpreter  # type: ignore[assignment]
        self.line = self.interpreter.line
        self.query: Tensor = given["query"]
        shard = shard_of(self.query)
        assert shard is not None
        self.shard: Shard = shard
        self.causal: bool = given.get("is_causal", False)
        self.scale: float = given.get("scale") or 1.0 / math.sqrt(self.query.shape[-1])

    def run(self) -> Tensor:
        """Attend, and say how the result is cut."""
        key, value = self._alike(self.given["key"], self.given["value"])
        known = shard_of(key)
        mixed = self._to_whole_keys(key, value) if known is None else self._by_kind(key, value, known.split)
        sources = sources_of(self.query, self.given["key"], self.given["value"], self.given.get("attn_mask"))
        return with_shard(mixed, Shard(dim=self.shard.dim, split=self.shard.split, sources=sources))

    def _alike(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Let keys and values be cut along the same positions, or neither."""
        shards = [shard_of(each) for each in (key, value)]
        alike = all(_is_cut_along_positions(each) for each in (key, value)) and shards[0].split == shards[1].split  # type: ignore[union-attr]
        if alike or shards == [None, None]:
            return key, value
        return self.interpreter.gather(key), self.interpreter.gather(value)

    def _by_kind(self, key: Tensor, value: Tensor, split: Split) -> Tensor:
        kind = self.interpreter.kind
        if kind != "allgather" and self._is_plain(key, value):
            return self._by_ring(key, value, split) if kind == "ring" else self._by_heads(key, value, split)
        width = key.shape[-1]
        if key.shape[:-1] == value.shape[:-1]:
            packed = gather_positions(torch.cat((key, value), -1), key.ndim - 2, split, self.line)
            return self._to_whole_keys(packed[..., :width], packed[..., width:])
        return self._to_whole_keys(*(gather_positions(x, x.ndim - 2, split, self.line) for x in (key, value)))

    def _is_plain(self, key: Tensor, value: Tensor) -> bool:
        """Whether the shapes are ``[B, H, T, K]`` without broadcasting, which is all the other kinds take."""
        shapes = [each.shape for each in (self.query, key, value)]
        return all(len(shape) == 4 and shape[0] == shapes[0][0] for shape in shapes) and shapes[1][1] == shapes[2][1]

    def _to_whole_keys(self, key: Tensor, value: Tensor) -> Tensor:
        options = {name: self.given[name] for name in ("scale", "enable_gqa") if name in self.given}
        if not self.causal:
            mask = self._rows_of_mask()
            return F.scaled_dot_product_attention(self.query, key, value, attn_mask=mask, **options)
        if self._is_plain(key, value):
            sight = Sight(queries=self._runs(), causal=True, mask=None, scale=self.scale)
            return causal_attention(self.query, key, value, sight)
        places = torch.arange(key.shape[-2], device=key.device)
        own = take_positions(
            torch.arange(self.shard.split.total, device=key.device), 0, self.shard.split, self.line.rank
        )
        seen = places[None, :] <= own[:, None]
        return F.scaled_dot_product_attention(self.query, key, value, attn_mask=seen, **options)

    def _runs(self) -> Any:
        return local_ranges(self.shard.split, self.line.rank)

    def _rows_of_mask(self) -> Tensor | None:
        """Give the mask's rows of this rank's queries."""
        mask: Tensor | None = self.given.get("attn_mask")
        if mask is None:
            return None
        shard = shard_of(mask)
        if shard is not None and (shard.dim, shard.split) == (mask.ndim - 2, self.shard.split):
            return mask
        whole: Tensor = self.interpreter.gather(mask)
        if whole.shape[-2] == 1 and self.shard.split.total > 1:
            return whole
        return take_positions(whole, whole.ndim - 2, self.shard.split, self.line.rank)

    def _by_ring(self, key: Tensor, value: Tensor, split: Split) -> Tensor:
        mask = self._rows_of_mask()
        if mask is not None and mask.ndim < 4:
            mask = mask.view(*[1] * (4 - mask.ndim), *mask.shape)
        sight = Sight(queries=self._runs(), causal=self.causal, mask=mask, scale=self.scale)
        return ring_attention(self.query, key, value, Ring(line=self.line, split=split), sight)

    def _by_heads(self, key: Tensor, value: Tensor, split: Split) -> Tensor:
        """Exchange positions for heads, attend to the whole sequence, and exchange back."""
        num_heads, degree = self.query.shape[1], self.line.degree
        if num_heads % degree:
            raise LayoutError("interpret.ulysses_heads", heads=num_heads, degree=degree)
        key, value = (_shared_heads(x, num_heads, degree) for x in (key, value))
        query, key, value = self._exchanged(key, value, split)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=self._heads_of_mask(num_heads),
            is_causal=self.causal,
            scale=self.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return positions_for_heads(mixed, self.shard.split, self.line)

    def _exchanged(self, key: Tensor, value: Tensor, split: Split) -> tuple[Tensor, Tensor, Tensor]:
        """Give all positions of this rank's heads; what has as many heads and positions travels together."""
        widths = [x.shape[-1] for x in (self.query, key, value)]
        if key.shape[1] == self.query.shape[1] and split == self.shard.split:
            whole = heads_for_positions(torch.cat((self.query, key, value), -1), split, self.line)
            query, key, value = torch.split(whole, widths, -1)
            return query, key, value
        query = heads_for_positions(self.query, self.shard.split, self.line)
        packed = heads_for_positions(torch.cat((key, value), -1), split, self.line)
        key, value = torch.split(packed, widths[1:], -1)
        return query, key, value

    def _heads_of_mask(self, num_heads: int) -> Tensor | None:
        mask: Tensor | None = self.given.get("attn_mask")
        if mask is None:
            return None
        whole: Tensor = self.interpreter.gather(mask)
        if whole.ndim < 3 or whole.shape[-3] == 1:
            return whole
        return whole.narrow(-3, num_heads // self.line.degree * self.line.rank, num_heads // self.line.degree)


def _shared_heads(x: Tensor, num_heads: int, degree: int) -> Tensor:
    """Repeat key heads until every rank gets whole ones, each with its own query heads."""
    num_kv_heads = x.shape[1]
    repeats = degree // math.gcd(num_kv_heads, degree)
    if num_heads % (num_kv_heads * repeats):
        repeats = num_heads // num_kv_heads
    return x if repeats == 1 else x.repeat_interleave(repeats, 1)
