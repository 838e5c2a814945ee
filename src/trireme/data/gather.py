"""Rows of a plan as arrays: tokens copied from the mapped shards straight into the batch.

Long segments are copied as slices, which runs at the speed of memory. Many short ones that lie in one
array are gathered by one index over the whole batch, so that numpy's cost a call is not paid per segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from trireme.data.batch import NOT_LEARNED, PADDING_DOCUMENT
from trireme.data.pack import PackPlan, ragged_arange

_LONG_SEGMENT_TOKENS = 400
"""Mean length from which slices beat the index; measured, flat between 300 and 600."""

_JOINED_BYTES = 64 << 20
"""Shards that take no more than this together are copied into one array when reading begins."""

FIELDS = ("input_ids", "labels", "position_ids", "document_ids")
"""What a block holds, in this order. Shapes: block [4, B, T] int32."""


class TokenSource(Protocol):
    """What is read of a store; ``TokenStore`` is one."""

    @property
    def starts(self) -> np.ndarray: ...
    @property
    def prompt_lengths(self) -> np.ndarray: ...
    @property
    def shards(self) -> tuple[np.ndarray, ...]: ...


class TokenCounts(NamedTuple):
    """Positions that are not padding, and labels that are learned."""

    num_real: int
    num_target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segments:
    """The segments of some rows in the order of their places. Shapes: all [S] int64.

    ``places`` are offsets in the flat rows, ``offsets`` in the shard, ``prompts`` the leading positions of a
    segment whose label belongs to a prompt, ``numbers`` the number of the segment within its row.
    """

    places: np.ndarray
    lengths: np.ndarray
    shards: np.ndarray
    offsets: np.ndarray
    prompts: np.ndarray
    numbers: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cover:
    """Segments and padding together, so that every place of the rows is in one. Shapes: all [S + paddings].

    Padding has the number -1 and any offset; ``paddings`` [paddings] says where it is.
    """

    places: np.ndarray
    lengths: np.ndarray
    offsets: np.ndarray
    numbers: np.ndarray
    paddings: np.ndarray


class RowReader:
    """Reads rows of one source."""

    def __init__(self, store: TokenSource, plan: PackPlan) -> None:
        self._plan = plan
        self._seq_len = plan.rules.seq_len
        self._shards = _join_small(store.shards)
        sizes = [len(shard) for shard in self._shards]
        self._bases = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._starts = np.asarray(store.starts)
        self._prompt_lengths = np.asarray(store.prompt_lengths)
        self._ramp = np.arange(self._seq_len, dtype=np.int32)

    def fill(self, rows: np.ndarray, block: np.ndarray, *, pad_id: int) -> TokenCounts:
        """Write ``rows`` into ``block`` and count tokens.

        Shapes:
            rows: [B] int64. block: [4, B, T] int32, contiguous.
        """
        if len(rows) == 0:
            return TokenCounts(0, 0)
        segments = self._segments(rows)
        num_real = int(segments.lengths.sum())
        inputs, labels, positions, documents = (block[field].reshape(-1) for field in range(len(FIELDS)))
        if num_real == len(rows) * self._seq_len == len(segments.lengths) * self._seq_len:
            block[2] = self._ramp
            block[3] = 0
            self._copy_slices(segments, inputs=inputs, labels=labels)
        else:
            cover = _cover(segments, size=inputs.size, seq_len=self._seq_len)
            _number_positions(cover, positions=positions, documents=documents)
            self._copy_tokens(segments, cover, inputs=inputs, labels=labels)
            _write_padding(cover, inputs=inputs, labels=labels, pad_id=pad_id)
        _mask_prompts(segments, labels=labels)
        return TokenCounts(num_real, num_real - int(segments.prompts.sum()))

    def _segments(self, rows: np.ndarray) -> _Segments:
        plan = self._plan
        first = plan.row_offsets[rows]
        per_row = plan.row_offsets[rows + 1] - first
        numbers = ragged_arange(per_row)
        chosen = np.repeat(first, per_row) + numbers
        documents, starts = plan.documents[chosen], plan.starts[chosen]
        lengths = plan.lengths[chosen].astype(np.int64)
        sources = self._starts[documents] + starts
        shards = np.searchsorted(self._bases, sources, side="right") - 1
        begins = np.cumsum(lengths) - lengths
        row_begins = begins[np.cumsum(per_row) - per_row]
        row_places = np.arange(len(rows), dtype=np.int64) * self._seq_len
        return _Segments(
            places=begins + np.repeat(row_places - row_begins, per_row),
            lengths=lengths,
            shards=shards,
            offsets=sources - self._bases[shards],
            prompts=np.clip(self._prompt_lengths[documents] - 1 - starts, 0, lengths),
            numbers=numbers,
        )

    def _copy_tokens(self, segments: _Segments, cover: _Cover, *, inputs: np.ndarray, labels: np.ndarray) -> None:
        """Pick the way that pays: slices for long segments or several shards, else an index."""
        if segments.lengths.mean() >= _LONG_SEGMENT_TOKENS:
            self._copy_slices(segments, inputs=inputs, labels=labels)
            return
        if len(self._shards) > 1 and np.ptp(segments.shards):
            self._copy_slices(segments, inputs=inputs, labels=labels)
            return
        shard = self._shards[segments.shards[0]]
        index = np.repeat(cover.offsets - cover.places, cover.lengths)
        index += np.arange(inputs.size)
        inputs[:] = shard.take(index, mode="clip")
        labels[:-1] = inputs[1:]
        ends = segments.lengths - 1
        labels[segments.places + ends] = shard[segments.offsets + ends + 1]

    def _copy_slices(self, segments: _Segments, *, inputs: np.ndarray, labels: np.ndarray) -> None:
        shards = self._shards
        columns = (segments.shards, segments.places, segments.lengths, segments.offsets)
        for number, place, length, offset in zip(*(column.tolist() for column in columns), strict=True):
            shard, end = shards[number], place + length
            inputs[place:end] = shard[offset : offset + length]
            labels[place:end] = shard[offset + 1 : offset + length + 1]


def _join_small(shards: tuple[np.ndarray, ...]) -> list[np.ndarray]:
    """Return the shards as plain arrays, as one array if they are small.

    Slicing a numpy.memmap costs a microsecond more each time than slicing a plain array.
    """
    if len(shards) > 1 and sum(shard.nbytes for shard in shards) <= _JOINED_BYTES:
        return [np.concatenate(shards)]
    return [np.asarray(shard) for shard in shards]


def _cover(segments: _Segments, *, size: int, seq_len: int) -> _Cover:
    ends = segments.places + segments.lengths
    last_of_row = np.append(segments.numbers[1:] == 0, True)
    padded = last_of_row & (ends % seq_len != 0)
    slots = np.arange(len(ends)) + np.cumsum(padded) - padded
    paddings = slots[padded] + 1
    places = np.empty(len(ends) + len(paddings), dtype=np.int64)
    places[slots], places[paddings] = segments.places, ends[padded]
    offsets = np.zeros_like(places)
    offsets[slots] = segments.offsets
    numbers = np.full(len(places), PADDING_DOCUMENT, dtype=np.int32)
    numbers[slots] = segments.numbers
    lengths = np.diff(places, append=size)
    return _Cover(places=places, lengths=lengths, offsets=offsets, numbers=numbers, paddings=paddings)


def _number_positions(cover: _Cover, *, positions: np.ndarray, documents: np.ndarray) -> None:
    places = cover.places.astype(np.int32)
    np.subtract(np.arange(positions.size, dtype=np.int32), np.repeat(places, cover.lengths), out=positions)
    documents[:] = np.repeat(cover.numbers, cover.lengths)


def _write_padding(cover: _Cover, *, inputs: np.ndarray, labels: np.ndarray, pad_id: int) -> None:
    places = cover.places[cover.paddings].tolist()
    for place, length in zip(places, cover.lengths[cover.paddings].tolist(), strict=True):
        inputs[place : place + length] = pad_id
        labels[place : place + length] = NOT_LEARNED


def _mask_prompts(segments: _Segments, *, labels: np.ndarray) -> None:
    with_prompt = np.flatnonzero(segments.prompts)
    places = segments.places[with_prompt].tolist()
    for place, length in zip(places, segments.prompts[with_prompt].tolist(), strict=True):
        labels[place : place + length] = NOT_LEARNED


def empty_block(num_rows: int, *, seq_len: int) -> np.ndarray:
    """Return room for ``num_rows`` rows. Shapes: [4, B, T] int32."""
    return np.empty((len(FIELDS), num_rows, seq_len), dtype=np.int32)
