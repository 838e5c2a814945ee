"""Attention over a cut sequence, tile by tile: which runs of queries see which runs of keys, and how."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trireme.interpret.context_kernel import Gradients, Mixed, attend, attend_backward, join, nothing_mixed
from trireme.interpret.sequence_split import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What a rank's queries may see.

    Attributes:
        queries: Runs of positions the rank holds.
        causal: Whether a query sees positions up to its own only.
        mask: Rows of this rank's queries, columns of all keys; broadcasts over ``[B, H, T, S]``.
        scale: Of the scores.
    """

    queries: tuple[Range, ...]
    causal: bool
    mask: Tensor | None
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Keys and values at hand: which runs of positions, and all their positions if the mask has to be cut."""

    key: Tensor
    value: Tensor
    ranges: tuple[Range, ...]
    positions: Tensor | None


class _Tile(NamedTuple):
    queries: slice
    keys: slice
    causal: bool
    mask: Tensor | None


def _tiles(sight: Sight, keys: Keys) -> Iterator[_Tile]:
    everything = slice(0, keys.key.shape[-2])
    if not sight.causal:
        mask = sight.mask
        if mask is not None and keys.positions is not None and mask.shape[-1] > 1:
            mask = mask.index_select(-1, keys.positions)
        yield _Tile(slice(0, sum(each.length for each in sight.queries)), everything, False, mask)
        return
    for run in sight.queries:
        for other in keys.ranges:
            yield from _causal_tiles(run, other, keys.key.device)


def _causal_tiles(run: Range, other: Range, device: torch.device) -> Iterator[_Tile]:
    """Cut one run of keys into those before the queries, and those among them."""
    queries = slice(run.place, run.place + run.length)
    before = min(max(0, run.start - other.start), other.length)
    if before:
        yield _Tile(queries, slice(other.place, other.place + before), False, None)
    among = min(other.start + other.length, run.start + run.length) - max(other.start, run.start)
    if among <= 0:
        return
    first = max(other.start, run.start)
    keys = slice(other.place + before, other.place + before + among)
    if first == run.start and among == run.length:
        yield _Tile(queries, keys, True, None)
        return
    query_places = torch.arange(run.start, run.start + run.length, device=device)
    key_places = torch.arange(first, first + among, device=device)
    yield _Tile(queries, keys, False, key_places[None, :] <= query_places[:, None])


def mix(query: Tensor, blocks: Sequence[Keys] | Iterator[Keys], sight: Sight) -> Mixed:
    """Let the queries see block after block of keys."""
    total: Mixed | None = None
    for keys in blocks:
        total = nothing_mixed(query, keys.value.shape[-1]) if total is None else total
        total = mix_block(query, keys, sight, total)
    assert total is not None
    return total


def mix_block(query: Tensor, keys: Keys, sight: Sight, total: Mixed) -> Mixed:
    """Add what the queries have from one block of keys."""
    groups = query.shape[-3] // keys.key.shape[-3]
    for tile in _tiles(sight, keys):
        key, value = (_by_query_head(x[..., tile.keys, :], groups) for x in (keys.key, keys.value))
        rows = query[..., tile.queries, :]
        found = attend(rows, key, value, mask=tile.mask, causal=tile.causal, scale=sight.scale)
        known = Mixed(
            total.mixed[..., tile.queries, :], total.highest[..., tile.queries], total.total[..., tile.queries]
        )
        for place, joined in zip(known, join(known, found), strict=True):
            place.copy_(joined)
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Backward:
    """What every tile of the backward pass reads, and the sums they add to."""

    grad: Tensor
    query: Tensor
    out: Tensor
    result: Mixed
    sight: Sight
    grad_query: Tensor
    grad_mask: Tensor | None

    def block(self, keys: Keys) -> tuple[Tensor, Tensor]:
        """Add one block's part to the queries' gradient; give those of its keys and values, in fp32 or better."""
        exact = self.grad_query.dtype
        grad_key, grad_value = (torch.zeros_like(x, dtype=exact) for x in (keys.key, keys.value))
        groups = self.query.shape[-3] // keys.key.shape[-3]
        for tile in _tiles(self.sight, keys):
            found = self._tile(keys, tile, groups)
            self.grad_query[..., tile.queries, :] += found.query
            grad_key[..., tile.keys, :] += _by_key_head(found.key, groups)
            grad_value[..., tile.keys, :] += _by_key_head(found.value, groups)
            if self.grad_mask is not None and found.mask is not None:
                self._add_to_mask(found.mask, keys.positions)
        return grad_key, grad_value

    def _tile(self, keys: Keys, tile: _Tile, groups: int) -> Gradients:
        key, value = (_by_query_head(x[..., tile.keys, :], groups) for x in (keys.key, keys.value))
        rows = tile.queries
        result = Mixed(*(x[..., rows, :] if x.ndim == self.query.ndim else x[..., rows] for x in self.result))
        return attend_backward(
            self.grad[..., rows, :],
            self.query[..., rows, :],
            key,
            value,
            self.out[..., rows, :],
            result,
            mask=tile.mask,
            causal=tile.causal,
            scale=self.sight.scale,
            wants_mask=self.grad_mask is not None,
        )

    def _add_to_mask(self, grad_scores: Tensor, positions: Tensor | None) -> None:
        assert self.grad_mask is not None
        shape = list(self.grad_mask.shape)
        if shape[-1] > 1:
            shape[-1] = grad_scores.shape[-1]
        part = grad_scores.sum_to_size(shape).to(self.grad_mask.dtype)
        if positions is None or shape[-1] == 1:
            self.grad_mask.add_(part)
        else:
            self.grad_mask.index_add_(-1, positions, part)


def _by_query_head(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else x.repeat_interleave(groups, -3)


def _by_key_head(x: Tensor, groups: int) -> Tensor:
    return x if groups == 1 else torch.unflatten(x, -3, (-1, groups)).sum(-3)
