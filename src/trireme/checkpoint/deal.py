"""Who writes what: every element of the state once, the work evenly over the ranks that hold it.

Each rank describes its pieces; from all descriptions every rank works out the same answer by itself.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trireme.checkpoint.piece import StatePiece, check_tensors
from trireme.checkpoint.ranges import block_numel, full_ranges, narrow
from trireme.checkpoint.record import DimRanges, Ranges
from trireme.checkpoint.stored_type import STORED_TYPES
from trireme.checkpoint.tie import first_names
from trireme.errors import CheckpointError

_SPLIT_BYTES = 32 * 1024 * 1024
"""Blocks that several ranks hold are cut to about this: finer would only make more entries."""

Class = tuple[DimRanges, frozenset[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceNote:
    """What a rank says of a piece; ``same_as`` names the first of its names that is the same memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    ranges: Ranges
    frozen: bool
    same_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A block that one rank writes: of tensor ``name``, taken from its piece ``source``."""

    name: str
    source: str
    dtype: str
    ranges: Ranges
    frozen: bool

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its values."""
        return block_numel(self.ranges) * STORED_TYPES[self.dtype].item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNote:
    """A tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    same_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """All tensors, and for every rank what it writes."""

    tensors: tuple[TensorNote, ...]
    parts: tuple[tuple[Part, ...], ...]

    def part_bytes(self, rank: int) -> int:
        """Return the bytes that a rank writes."""
        return sum(part.size_bytes for part in self.parts[rank])

    @property
    def total_bytes(self) -> int:
        """Return the bytes that all ranks write."""
        return sum(self.part_bytes(rank) for rank in range(len(self.parts)))


def describe_pieces(pieces: Mapping[str, StatePiece]) -> tuple[PieceNote, ...]:
    """Return what this rank holds, in words.

    Raises:
        CheckpointError: A tensor can't be saved exactly.
    """
    tensors = {name: piece.tensor for name, piece in pieces.items()}
    check_tensors(tensors)
    firsts = first_names(tensors)
    return tuple(
        PieceNote(
            name=name,
            dtype=piece.dtype,
            shape=piece.shape,
            ranges=piece.ranges,
            frozen=piece.frozen,
            same_as=None if firsts[name] == name else firsts[name],
        )
        for name, piece in pieces.items()
    )


def deal_pieces(notes_of_ranks: Sequence[Sequence[PieceNote]]) -> Deal:
    """Return who writes what, from what all ranks hold.

    Raises:
        CheckpointError: Ranks describe a tensor differently, or part of one is on no rank.
    """
    firsts = tied_names(notes_of_ranks)
    notes: dict[str, PieceNote] = {}
    holders: dict[str, list[tuple[int, PieceNote]]] = defaultdict(list)
    for rank, of_rank in enumerate(notes_of_ranks):
        for note in of_rank:
            known = notes.setdefault(note.name, note)
            if (known.shape, known.dtype) != (note.shape, note.dtype):
                raise CheckpointError("checkpoint.unlike_pieces", name=note.name, rank=rank)
            if note.same_as is None:
                holders[firsts[note.name]].append((rank, note))
    tensors = tuple(
        TensorNote(
            name=name, shape=note.shape, dtype=note.dtype, same_as=None if firsts[name] == name else firsts[name]
        )
        for name, note in notes.items()
    )
    return Deal(tensors=tensors, parts=_dealt(holders, num_ranks=len(notes_of_ranks)))


def tied_names(notes_of_ranks: Sequence[Sequence[PieceNote]]) -> dict[str, str]:
    """Map every name to the first name that any rank knows to be the same tensor."""
    first: dict[str, str] = {}
    for note in itertools.chain.from_iterable(notes_of_ranks):
        first.setdefault(note.name, note.name)
        if note.same_as is not None:
            old, new = _root(first, note.name), _root(first, note.same_as)
            if old != new:
                first[old] = new
    return {name: _root(first, name) for name in first}


def _root(first: dict[str, str], name: str) -> str:
    while first.setdefault(name, name) != name:
        name = first[name]
    return name


def _dealt(holders: Mapping[str, list[tuple[int, PieceNote]]], *, num_ranks: int) -> tuple[tuple[Part, ...], ...]:
    """Give each block to the rank that has least to write so far, large blocks first."""
    dealt: list[list[Part]] = [[] for _ in range(num_ranks)]
    open_parts: list[tuple[Part, dict[int, str]]] = []
    for name, held in holders.items():
        for part, sources in _blocks(name, held):
            if len(sources) == 1:
                (rank,) = sources
                dealt[rank].append(part)
            else:
                open_parts += [(each, sources) for each in _cut(part, pieces=len(sources))]
    load_bytes = [sum(part.size_bytes for part in parts) for parts in dealt]
    for part, sources in sorted(open_parts, key=lambda each: -each[0].size_bytes):
        rank = min(sources, key=lambda each: (load_bytes[each], each))
        dealt[rank].append(replace(part, source=sources[rank]))
        load_bytes[rank] += part.size_bytes
    order = {name: index for index, name in enumerate(holders)}
    return tuple(tuple(sorted(parts, key=lambda part: (order[part.name], part.ranges))) for parts in dealt)


def _blocks(name: str, held: list[tuple[int, PieceNote]]) -> list[tuple[Part, dict[int, str]]]:
    """Cut a tensor into blocks that each rank holds wholly or not at all; with the holders and their names for it."""
    note = held[0][1]
    blocks: dict[Ranges, dict[int, str]] = defaultdict(dict)
    classes = [_classes([each.ranges[dim] for _, each in held]) for dim in range(len(note.shape))]
    for index, (rank, each) in enumerate(held):
        for ranges in itertools.product(*([dim for dim, of in every if index in of] for every in classes)):
            blocks[ranges].setdefault(rank, each.name)
    covered, wanted = sum(block_numel(ranges) for ranges in blocks), block_numel(full_ranges(note.shape))
    if covered != wanted:
        raise CheckpointError("checkpoint.not_held", name=name, found=covered, wanted=wanted)
    if not wanted:  # an empty tensor: one empty block stands for it
        blocks = {full_ranges(note.shape): {rank: each.name for rank, each in reversed(held)}}
    return [
        (
            Part(name=name, source=next(iter(sources.values())), dtype=note.dtype, ranges=ranges, frozen=note.frozen),
            sources,
        )
        for ranges, sources in blocks.items()
        if not wanted or block_numel(ranges)
    ]


def _classes(dims: list[DimRanges]) -> list[Class]:
    """Cut one dim into stretches that the same holders have: (stretches, which of the holders)."""
    if all(dim == dims[0] for dim in dims):
        return [(dims[0], frozenset(range(len(dims))))]
    edges = sorted({edge for dim in set(dims) for offset, length in dim for edge in (offset, offset + length)})
    place = {edge: index for index, edge in enumerate(edges)}
    having: list[set[int]] = [set() for _ in edges]
    for index, dim in enumerate(dims):
        for offset, length in dim:
            for at in range(place[offset], place[offset + length]):
                having[at].add(index)
    stretches: dict[frozenset[int], list[tuple[int, int]]] = defaultdict(list)
    for (start, end), of in zip(itertools.pairwise(edges), having, strict=False):
        mine = stretches[frozenset(of)]
        if mine and sum(mine[-1]) == start:
            mine[-1] = (mine[-1][0], end - mine[-1][0])
        else:
            mine.append((start, end - start))
    return [(tuple(found), of) for of, found in stretches.items() if of]


def _cut(part: Part, *, pieces: int) -> list[Part]:
    """Cut a block that several ranks hold along its first dim, so that they share the work."""
    count = min(-(-part.size_bytes // _SPLIT_BYTES), 4 * pieces)
    if count <= 1 or not part.ranges:
        return [part]
    rows = sum(length for _, length in part.ranges[0])
    edges = [rows * index // count for index in range(count + 1)]
    spans = [(first, last) for first, last in itertools.pairwise(edges) if first < last]
    return [
        replace(part, ranges=(narrow(part.ranges[0], first, last - first), *part.ranges[1:])) for first, last in spans
    ]
