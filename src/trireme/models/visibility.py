"""Who may attend to whom: causal, and blind between the documents of a packed row."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

HOST_BLOCK = 64
"""Queries the CPU attends with at a time; smaller wastes less above the diagonal, larger suits the cores."""


class Visibility:
    """Keys a query may see, as the first of them; the last is the query itself. One per forward pass.

    A document is a run of equal ids in a row; padding (id -1) sees itself only, so no row is empty and
    nothing is NaN. The forms the attention paths need are made on first use and shared by the layers.
    """

    def __init__(self, document_ids_BT: Tensor | None) -> None:
        self.document_ids_BT = document_ids_BT

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

    @cached_property
    def block_starts(self) -> tuple[int, ...]:
        """First key any query of each block of ``HOST_BLOCK`` queries sees."""
        starts = self.first_key.amin(dim=0)
        return tuple(int(part[0]) for part in torch.split(starts, HOST_BLOCK))

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
