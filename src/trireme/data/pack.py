"""Which pieces of which documents share a row: a pure function of lengths, options and seed.

A document of n tokens is n-1 predictions. It becomes pieces of at most ``seq_len`` predictions; neighbouring
pieces share one token, the last label of one being the first input of the next, so no prediction is lost or
made twice. Documents are taken in a seeded order, ``WINDOW`` at a time, and inside a window the pieces are
laid into rows best-fit decreasing: the longest first, each into the row it leaves the least room in.

Source: best-fit decreasing: D. S. Johnson, Near-optimal bin packing algorithms, MIT, 1973; for training
sequences: H. Ding et al., Fewer truncations improve language modeling, ICML 2024 (arXiv 2404.10830).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trireme.data.permute import derive_key, derive_keys, permute
from trireme.errors import DataError

WINDOW = 4096
"""Documents packed together."""
_ORDER_KEY = 0x7061636B

LongDocuments = Literal["split", "truncate", "drop", "stop"]
Packing = Literal["isolate", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRules:
    """What decides how documents become rows."""

    seq_len: int
    packing: Packing = "isolate"
    long_documents: LongDocuments = "split"
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackCounts:
    """What became of the documents that were to be packed.

    Units:
        *_tokens: predictions lost, except num_real_tokens (positions that are not padding) and
        num_target_tokens (labels that are learned).
    """

    num_documents: int = 0
    num_rows: int = 0
    num_real_tokens: int = 0
    num_target_tokens: int = 0
    nothing_to_learn: int = 0
    nothing_to_learn_tokens: int = 0
    split: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    dropped: int = 0
    dropped_tokens: int = 0
    prompt_pieces: int = 0
    prompt_pieces_tokens: int = 0
    without_target: int = 0
    """Documents of which no kept piece has a token to learn, however that came about; dropped ones apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """Rows as lists of segments.

    Shapes:
        row_offsets: [num_rows + 1] int64; row r has segments row_offsets[r] .. row_offsets[r+1]-1.
        documents, starts: [num_segments] int64; lengths: [num_segments] int32. A segment's inputs are tokens
        start .. start+length-1 of its document, its labels tokens start+1 .. start+length.
    """

    rules: PackRules
    row_offsets: np.ndarray
    documents: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    counts: PackCounts
    folder: Path | None = None

    @property
    def num_rows(self) -> int:
        """Samples an epoch."""
        return len(self.row_offsets) - 1

    @property
    def efficiency_ratio(self) -> float:
        """Share of positions that are not padding."""
        positions = self.num_rows * self.rules.seq_len
        return self.counts.num_real_tokens / positions if positions else 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        from trireme.data.plan_file import load_plan

        if self.folder is not None:
            return load_plan, (self.folder,)
        return _rebuild, (self.rules, self.row_offsets, self.documents, self.starts, self.lengths, self.counts)


def _rebuild(rules: PackRules, offsets: Any, documents: Any, starts: Any, lengths: Any, counts: PackCounts) -> PackPlan:
    return PackPlan(
        rules=rules, row_offsets=offsets, documents=documents, starts=starts, lengths=lengths, counts=counts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """Pieces in the order of their documents. Shapes: all [num_pieces] int64."""

    documents: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray

    def where(self, chosen: np.ndarray) -> _Pieces:
        return _Pieces(
            documents=self.documents[chosen],
            starts=self.starts[chosen],
            lengths=self.lengths[chosen],
            targets=self.targets[chosen],
        )


def has_target(lengths: np.ndarray, *, prompt_lengths: np.ndarray) -> np.ndarray:
    """Say which documents have a token to learn: one that is neither the first nor part of a prompt."""
    learned: np.ndarray = (lengths >= 2) & (lengths > prompt_lengths)
    return learned


def build_plan(
    lengths: np.ndarray, *, prompt_lengths: np.ndarray, documents: np.ndarray, rules: PackRules, source: str = ""
) -> PackPlan:
    """Return how ``documents`` become rows; ``source`` is their name in messages.

    Shapes:
        lengths, prompt_lengths: [documents of the source]. documents: [N] int64, the ones to pack.

    Raises:
        DataError: ``long_documents`` is ``stop`` and a document does not fit in a row.
    """
    counts = PackCounts(num_documents=len(documents))
    documents, counts = _leave_out_empty(lengths, prompt_lengths=prompt_lengths, documents=documents, counts=counts)
    if rules.long_documents == "stop":
        _refuse_long(lengths, documents=documents, seq_len=rules.seq_len, source=source)
    documents, counts = _leave_out_long(lengths, documents=documents, rules=rules, counts=counts)
    documents = documents[_shuffled(len(documents), seed=rules.seed)]
    pieces, counts = _cut(lengths, prompt_lengths=prompt_lengths, documents=documents, rules=rules, counts=counts)
    rows = _assign_rows(pieces, documents=documents, rules=rules)
    return _assemble(pieces, rows=rows, rules=rules, counts=counts)


def _refuse_long(lengths: np.ndarray, *, documents: np.ndarray, seq_len: int, source: str) -> None:
    long = documents[lengths[documents] - 1 > seq_len]
    if len(long):
        first = int(long[0])
        length = int(lengths[first])
        raise DataError(
            "sample.long_document", source=source, number=first + 1, tokens=length, seq_len=seq_len, count=len(long)
        )


def _leave_out_empty(
    lengths: np.ndarray, *, prompt_lengths: np.ndarray, documents: np.ndarray, counts: PackCounts
) -> tuple[np.ndarray, PackCounts]:
    good = has_target(lengths[documents], prompt_lengths=prompt_lengths[documents])
    lost = np.maximum(lengths[documents[~good]] - 1, 0)
    counts = replace(counts, nothing_to_learn=int((~good).sum()), nothing_to_learn_tokens=int(lost.sum()))
    return documents[good], counts


def _leave_out_long(
    lengths: np.ndarray, *, documents: np.ndarray, rules: PackRules, counts: PackCounts
) -> tuple[np.ndarray, PackCounts]:
    if rules.long_documents != "drop":
        return documents, counts
    predictions = lengths[documents] - 1
    long = predictions > rules.seq_len
    counts = replace(counts, dropped=int(long.sum()), dropped_tokens=int(predictions[long].sum()))
    return documents[~long], counts


def _shuffled(count: int, *, seed: int) -> np.ndarray:
    keys = derive_keys(derive_key(seed, _ORDER_KEY), np.zeros(1, dtype=np.int64))
    return permute(np.arange(count, dtype=np.int64), size=max(count, 1), keys=keys)


def _cut(
    lengths: np.ndarray, *, prompt_lengths: np.ndarray, documents: np.ndarray, rules: PackRules, counts: PackCounts
) -> tuple[_Pieces, PackCounts]:
    """Cut documents into pieces and leave out those in which nothing is learned."""
    predictions = lengths[documents] - 1
    long = predictions > rules.seq_len
    if rules.long_documents == "truncate":
        lost = int((predictions[long] - rules.seq_len).sum())
        counts = replace(counts, truncated=int(long.sum()), truncated_tokens=lost)
        predictions = np.minimum(predictions, rules.seq_len)
    else:
        counts = replace(counts, split=int(long.sum()))
    per_document = -(-predictions // rules.seq_len)
    starts = ragged_arange(per_document) * rules.seq_len
    owners = np.repeat(documents, per_document)
    piece_lengths = np.minimum(np.repeat(predictions, per_document) - starts, rules.seq_len)
    first_learned = np.maximum(starts, prompt_lengths[owners].astype(np.int64) - 1)
    targets = np.maximum(starts + piece_lengths - first_learned, 0)
    pieces = _Pieces(documents=owners, starts=starts, lengths=piece_lengths, targets=targets)
    empty = targets == 0
    lost = int(piece_lengths[empty].sum())
    kept = pieces.where(~empty)
    without = counts.num_documents - counts.dropped - len(np.unique(kept.documents))
    counts = replace(counts, prompt_pieces=int(empty.sum()), prompt_pieces_tokens=lost, without_target=without)
    return kept, counts


def ragged_arange(counts: np.ndarray) -> np.ndarray:
    """Return 0..c-1 for each of ``counts``, back to back."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    ramp: np.ndarray = np.arange(total, dtype=np.int64) - np.repeat(ends - counts, counts)
    return ramp


def _assign_rows(pieces: _Pieces, *, documents: np.ndarray, rules: PackRules) -> np.ndarray:
    """Return the row of each piece."""
    if rules.packing == "none":
        return np.arange(len(pieces.lengths), dtype=np.int64)
    place = np.empty(int(documents.max()) + 1 if len(documents) else 0, dtype=np.int64)
    place[documents] = np.arange(len(documents))
    windows = place[pieces.documents] // WINDOW
    borders = np.flatnonzero(np.diff(windows, prepend=-1, append=np.iinfo(np.int64).max))
    rows = np.empty(len(pieces.lengths), dtype=np.int64)
    base = 0
    for begin, end in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True):
        rows[begin:end] = base + pack_window(pieces.lengths[begin:end], seq_len=rules.seq_len)
        base = int(rows[begin:end].max()) + 1
    return rows


def pack_window(lengths: np.ndarray, *, seq_len: int) -> np.ndarray:
    """Return the row of each piece, best-fit decreasing, rows numbered from 0. Shapes: [N] -> [N] int64."""
    by_size = np.argsort(-lengths, kind="stable")
    sizes, counts = np.unique(lengths, return_counts=True)
    rows = np.empty(len(lengths), dtype=np.int64)
    rows[by_size] = _best_fit(sizes[::-1].tolist(), counts[::-1].tolist(), seq_len=seq_len)
    return rows


def _best_fit(sizes: list[int], counts: list[int], *, seq_len: int) -> list[int]:
    """Return a row for each piece, the pieces given as (size, count) from the largest size down.

    Rows with room are kept in one stack a size of room; ``open_rooms`` has a bit for each stack that is not
    empty, so the tightest row that fits is the lowest bit at or above the size. Pieces of one size that
    follow each other into the same row go there together.
    """
    assigned: list[int] = []
    rows_by_room: dict[int, list[int]] = {}
    open_rooms, num_rows, smallest = 0, 0, sizes[-1]
    for size, count in zip(sizes, counts, strict=True):
        while count:
            fitting = open_rooms >> size
            if fitting:
                room = size + (fitting & -fitting).bit_length() - 1
                row = rows_by_room[room].pop()
                if not rows_by_room[room]:
                    open_rooms ^= 1 << room
            else:
                room, row = seq_len, num_rows
                num_rows += 1
            taken = min(room // size, count)
            assigned += [row] * taken
            count -= taken
            room -= taken * size
            if room >= smallest:
                rows_by_room.setdefault(room, []).append(row)
                open_rooms |= 1 << room
    return assigned


def _assemble(pieces: _Pieces, *, rows: np.ndarray, rules: PackRules, counts: PackCounts) -> PackPlan:
    by_row = np.argsort(rows, kind="stable")
    num_rows = int(rows.max()) + 1 if len(rows) else 0
    offsets = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_rows))]).astype(np.int64)
    counts = replace(
        counts,
        num_rows=num_rows,
        num_real_tokens=int(pieces.lengths.sum()),
        num_target_tokens=int(pieces.targets.sum()),
    )
    return PackPlan(
        rules=rules,
        row_offsets=offsets,
        documents=pieces.documents[by_row],
        starts=pieces.starts[by_row],
        lengths=pieces.lengths[by_row].astype(np.int32),
        counts=counts,
    )
