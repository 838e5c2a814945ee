"""Who may attend to whom: causal, and blind between the documents of a packed row."""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

HOST_BLOCK = 64
"""Queries the CPU attends with at a time; smaller wastes less above the diagonal, larger suits the cores."""


class Block(NamedTuple):
    """Queries ``first:last``, which see keys from ``key`` on."""

    first: int
    last: int
    key: int


class Visibility:
    """Keys a query may see, as the first of them; the last is the query itself. One per forward pass.

    A document is a run of equal ids in a row; padding (id -1) sees itself only, so no row is empty and
    nothing is NaN. The forms the attention paths need are made on first use and shared by the layers.
    """

    def __init__(self, document_ids_BT: Tensor | None) -> None:
        self.document_ids_BT = document_ids_BT
        self._hidden: dict[tuple[object, ...], Tensor] = {}

    @cached_property
    def first_key(self) -> Tensor:
        """First visible key of each query, counted in its row."""
        ids = self._ids
        place = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return torch.where(self._begins, place, 0).cummax(dim=1).values

    @cached_property
    def dense_mask(self) -> Tensor:
        """True where a query (T) may see a key (S); the general form, quadratic in length."""
        place = torch.arange(self._ids.shape[1], device=self._ids.device)
        seen = place[None, None, :] >= self.first_key[:, :, None]
        return seen & (place[None, None, :] <= place[None, :, None])

    @cached_property
    def one_document_a_row(self) -> bool:
        """Whether plain causal attention is the same; reads one number back from the device."""
        return self.document_ids_BT is None or not bool(self._begins[:, 1:].any())

    def blocks(self, num_queries: int) -> list[Block]:
        """Cut the queries into blocks, each with the first key that any of its queries sees."""
        starts = range(0, num_queries, HOST_BLOCK)
        first_keys = [0] * len(starts)
        if not self.one_document_a_row:
            first_keys = [int(part.min()) for part in torch.split(self.first_key, HOST_BLOCK, dim=1)]
        return [
            Block(first=first, last=min(first + HOST_BLOCK, num_queries), key=key)
            for first, key in zip(starts, first_keys, strict=True)
        ]

    def hidden(self, block: Block, *, dtype: torch.dtype) -> Tensor:
        """Give 0 where a query sees a key and -inf where not, to add to scores.

        Shapes:
            ``[B, queries, keys]``; where every row is one document, only the block's own keys can be
            hidden and all rows are alike: ``[1, queries, queries]``.
        """
        key = block.first if self.one_document_a_row else block.key
        name = (block.first, block.last, key, dtype)
        if name not in self._hidden:
            place = torch.arange(key, block.last)
            seen = place <= place[block.first - key :, None]
            if not self.one_document_a_row:
                seen = seen & (place >= self.first_key[:, block.first : block.last, None])
            shape = (-1, block.last - block.first, block.last - key)
            self._hidden[name] = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, -math.inf).view(shape)
        return self._hidden[name]

    @cached_property
    def boundaries(self) -> Tensor:
        """Where documents begin in the rows laid end to end, and the end: int32, one more than documents."""
        begins = self._begins.reshape(-1).nonzero().squeeze(-1)
        end = torch.tensor([self._begins.numel()], device=begins.device)
        return torch.cat((begins, end)).to(torch.int32)

    @cached_property
    def longest_document(self) -> int:
        """Tokens of the longest document; reads one number back from the device."""
        return int(self.boundaries.diff().max())

    @cached_property
    def _begins(self) -> Tensor:
        ids = self._ids
        begins = torch.ones_like(ids, dtype=torch.bool)
        begins[:, 1:] = (ids[:, 1:] != ids[:, :-1]) | (ids[:, 1:] < 0)
        return begins

    @property
    def _ids(self) -> Tensor:
        assert self.document_ids_BT is not None, "plain causal attention needs no document forms"
        return self.document_ids_BT
