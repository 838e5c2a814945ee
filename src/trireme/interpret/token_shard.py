"""Sequence parallelism: between the matrices of tensor parallelism, each rank keeps some positions of all channels.

What a row-parallel matrix gives is summed into shares of the positions instead of to all; norms, dropout and
residual sums work on shares; before the next matrix that is cut they are gathered, once for all that read them.

Source:
    Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", section 4.2.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from trireme.interpret.collective import Line, gather
from trireme.interpret.sequence_collective import gather_positions, scatter_partial, share_positions, take_positions
from trireme.interpret.sequence_split import SequenceName, contiguous_split, counts_positions
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import marks_of, shard_of, with_marks, with_shard
from trireme.interpret.torch_private import rank_outside

_OUTSIDE = "cp"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPlace:
    """Where positions are in what a matrix gives.

    Attributes:
        dim: That counts them, or them together with others.
        name: The input whose positions they are.
        repeats: Whether the dim counts the positions of one sequence after the other.
        inner: Elements of the dim that a position has.
    """

    dim: int
    name: str
    repeats: bool = False
    inner: int = 1


def place_of_tokens(result: Tensor) -> TokenPlace | None:
    """Read which dim counts positions off a cut into two runs on an axis of their own."""
    shard = marks_of(result).get(_OUTSIDE)
    if shard is None or shard.dim == result.ndim - 1:
        return None
    period = shard.split.parts[:2]
    repeats = len(shard.split.parts) // 2
    name = next((source for source in shard.sources if isinstance(source, SequenceName)), None)
    if name is None or shard.split.parts != period * repeats:
        return None
    return TokenPlace(dim=shard.dim, name=name, repeats=repeats > 1)


class _Cut(NamedTuple):
    """A cut of positions: as it is stored here, as this axis numbers it, and what the axis outside then sees."""

    local: Split
    whole: Split
    outside: Shard | None = None


def _owner(part: tuple[int, ...]) -> int | None:
    """Give who holds a piece alone."""
    owners = [place for place, size in enumerate(part) if size]
    return owners[0] if len(owners) == 1 else None


def is_token_shard(value: object) -> bool:
    """Whether a tensor is a share of positions."""
    shard = shard_of(value)
    return shard is not None and counts_positions(shard.sources)


@dataclass(slots=True, kw_only=True)
class Tokens:
    """The shares of positions of one interpretation.

    Attributes:
        places: By name of the parameter that gives partial sums.
    """

    line: Line
    places: Mapping[str, TokenPlace]
    _lengths: dict[str, int] = field(default_factory=dict)
    _known: set[Split] = field(default_factory=set)
    _own: int = 0
    _last: tuple[Tensor, int, Tensor] | None = None

    def scatter(self, names: Iterable[str], tensor: Tensor) -> Tensor | None:
        """Sum partial results into shares; None where it isn't known which dim counts positions, or they are few."""
        place = next((self.places[name] for name in names if name in self.places), None)
        cut = None if place is None else self._cut(place, tensor)
        if place is None or cut is None:
            return None
        result = scatter_partial(tensor, place.dim, cut.local, self.line)
        if cut.outside is not None:
            with_marks(result, {_OUTSIDE: cut.outside})
        else:
            self._known |= {cut.whole, Split(parts=cut.whole.parts[:1])}
        return with_shard(result, Shard(dim=place.dim, split=cut.whole, sources=frozenset({SequenceName(place.name)})))

    def _cut(self, place: TokenPlace, tensor: Tensor) -> _Cut | None:
        outside = marks_of(tensor).get(_OUTSIDE)
        if outside is not None:
            return self._inside(outside) if outside.dim == place.dim else None
        total = tensor.shape[place.dim]
        length = self._lengths.get(place.name, 0) if place.repeats else total // place.inner
        if length < self.line.degree or total % (length * place.inner):
            return None
        self._lengths[place.name] = length
        parts = contiguous_split(length, self.line.degree).scaled(place.inner).parts * (total // (length * place.inner))
        return _Cut(local=Split(parts=parts), whole=Split(parts=parts))

    def _inside(self, outside: Shard) -> _Cut | None:
        """Cut further what the axis outside has cut: each of its pieces into shares."""
        degree, own = self.line.degree, rank_outside()
        self._own = own
        pieces = [(place, sum(part)) for part in outside.split.parts for place in [_owner(part)]]
        if any(_owner(part) is None for part in outside.split.parts) or min(size for _, size in pieces) < degree:
            return None
        shares = [contiguous_split(size, degree).parts[0] for _, size in pieces]
        left = [
            tuple(sizes[self.line.rank] if place == owner else 0 for place in range(len(part)))
            for (owner, _), sizes, part in zip(pieces, shares, outside.split.parts, strict=True)
        ]
        return _Cut(
            local=Split(parts=tuple(sizes for (owner, _), sizes in zip(pieces, shares, strict=True) if owner == own)),
            whole=Split(parts=tuple(shares)),
            outside=Shard(dim=outside.dim, split=Split(parts=tuple(left)), sources=outside.sources),
        )

    def gather(self, tensor: Tensor) -> Tensor:
        """Make shares whole for matrices that are cut: their partial gradients are summed into shares."""
        if self._last is None or self._last[0] is not tensor or self._last[1] != tensor._version:
            self._last = (tensor, tensor._version, self._gathered(tensor, partial=True))
        return self._last[2]

    def gather_for_all(self, tensor: Tensor) -> Tensor:
        """Make shares whole for what every rank does alike: their gradients are complete."""
        return self._gathered(tensor, partial=False)

    def _gathered(self, tensor: Tensor, *, partial: bool) -> Tensor:
        shard = shard_of(tensor)
        assert shard is not None
        self._note_length(shard)
        cut = self._put_back(tensor, shard)
        whole = (gather_positions if partial else gather)(tensor, shard.dim, cut.local, self.line)
        return whole if cut.outside is None else with_marks(whole, {_OUTSIDE: cut.outside})

    def _put_back(self, tensor: Tensor, shard: Shard) -> _Cut:
        """Give how shares are stored, and the cut of the axis outside once they are together."""
        outside = marks_of(tensor).get(_OUTSIDE)
        if outside is None or outside.dim != shard.dim:
            return _Cut(local=shard.split, whole=shard.split)
        pairs = list(zip(outside.split.parts, shard.split.parts, strict=True))
        own = max(rank_outside(), self._own)  # outputs are put together where no handler runs
        before = [tuple(sum(sizes) if size else 0 for size in part) for part, sizes in pairs]
        return _Cut(
            local=Split(parts=tuple(sizes for part, sizes in pairs if part[own])),
            whole=shard.split,
            outside=Shard(dim=outside.dim, split=Split(parts=tuple(before)), sources=outside.sources),
        )

    def _note_length(self, shard: Shard) -> None:
        """Know how long a sequence is, for dims that count several of them."""
        if len(shard.split.parts) == 1:
            for source in shard.sources:
                self._lengths[source] = shard.split.total

    def share(self, tensor: Tensor, dim: int, split: Split) -> Tensor | None:
        """Take this rank's positions of a whole tensor; None if the cut isn't one of positions."""
        if split not in self._known:
            return None
        if not tensor.requires_grad:
            return take_positions(tensor, dim, split, self.line.rank)
        return share_positions(tensor, dim, split, self.line)

    def forget(self) -> None:
        """Let go of what was gathered last."""
        self._last = None
