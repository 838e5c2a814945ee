"""What a rank holds of each tensor, in the numbering of the whole one: the same words in any layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist
from torch import Tensor

from trireme.errors import LayoutError

Range = tuple[int, int]
"""(offset, length) along one dim of the whole tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One rank's part of a tensor.

    ``ranges[d]`` are the stretches of the whole tensor's dim d that dim d of ``tensor`` holds, one after the other.
    """

    name: str
    tensor: Tensor
    global_shape: tuple[int, ...]
    ranges: tuple[tuple[Range, ...], ...]

    def __post_init__(self) -> None:
        held = tuple(sum(length for _, length in stretches) for stretches in self.ranges)
        assert held == tuple(self.tensor.shape), f"{self.name}: {held} described, {tuple(self.tensor.shape)} held"

    @property
    def is_whole(self) -> bool:
        """Whether the rank holds all of it."""
        return tuple(self.tensor.shape) == self.global_shape

    def boxes(self) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Yield (where in the whole tensor, where in the local one) of each unbroken block."""
        for chosen in product(*(_placed(stretches) for stretches in self.ranges)):
            whole = tuple(slice(offset, offset + length) for offset, length, _ in chosen)
            local = tuple(slice(place, place + length) for _, length, place in chosen)
            yield whole, local

    def with_tensor(self, tensor: Tensor, *, name: str | None = None) -> Piece:
        """Give the piece of another tensor that is held just like this one."""
        return Piece(name=name or self.name, tensor=tensor, global_shape=self.global_shape, ranges=self.ranges)


def whole_piece(name: str, tensor: Tensor) -> Piece:
    """Give a tensor that this rank holds all of."""
    shape = tuple(tensor.shape)
    return Piece(name=name, tensor=tensor, global_shape=shape, ranges=tuple(((0, size),) for size in shape))


def _placed(stretches: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Add to each stretch where it begins locally."""
    placed, start = [], 0
    for offset, length in stretches:
        placed.append((offset, length, start))
        start += length
    return placed


def narrow_ranges(stretches: Sequence[Range], *, start: int, length: int) -> tuple[Range, ...]:
    """Give which stretches of the whole dim ``length`` local places from ``start`` on are.

    A rank that holds nothing has one empty stretch.
    """
    kept = []
    for offset, size, place in _placed(stretches):
        first, last = max(start, place), min(start + length, place + size)
        if first < last:
            kept.append((offset + first - place, last - first))
    return tuple(kept) or ((0, 0),)


def assemble(pieces: Iterable[Piece]) -> Tensor:
    """Put the ranks' pieces of one tensor together.

    Raises:
        LayoutError: They don't cover it.
    """
    collected = list(pieces)
    first = collected[0]
    whole = first.tensor.new_zeros(first.global_shape)
    covered = torch.zeros(first.global_shape, dtype=torch.bool)
    for piece in collected:
        for place, local in piece.boxes():
            whole[place] = piece.tensor[local]
            covered[place] = True
    if not bool(covered.all()):
        missing = math.prod(first.global_shape) - int(covered.sum())
        raise LayoutError("ranks.not_covered", name=first.name, missing=missing)
    return whole


def gather_whole(pieces: Mapping[str, Piece], *, keep: Callable[[str], bool] = lambda name: True) -> dict[str, Tensor]:
    """Give every tensor of all ranks, whole and on the host, on rank 0; other ranks get an empty mapping.

    Meant for models that fit one host: one tensor after the other, but all of them in the end.
    """
    names = _all_names([name for name in pieces if keep(name)])
    wholes = {}
    for name in names:
        parts = _gather_piece(pieces.get(name))
        if parts:
            wholes[name] = assemble(parts)
    return wholes


def _all_names(own: Sequence[str]) -> list[str]:
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, list(own))
    return list(dict.fromkeys(name for names in gathered for name in names))


def _gather_piece(piece: Piece | None) -> list[Piece]:
    """Collect one tensor's pieces on rank 0."""
    host = None if piece is None else piece.with_tensor(piece.tensor.detach().to("cpu", copy=True).contiguous())
    collected: list[Piece | None] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(host, collected)
    return [each for each in collected or () if each is not None]
