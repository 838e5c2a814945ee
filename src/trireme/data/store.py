"""A source as tokens: shard files, mapped into memory, with a table of its documents.

``index.json`` describes the folder by itself: format version, type of the tokens, counts, the xxh3 of every
file and of its own text, what they were made from. It is written last and the folder takes its name last.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trireme.data.document import SourceCounts
from trireme.data.shard import (
    DOCUMENT_DTYPE,
    ShardNote,
    hash_file,
    sealed,
    shard_name,
    token_dtype,
    unsealed,
    write_durably,
)

FORMAT_VERSION = 2
INDEX_NAME = "index.json"
ALWAYS_HASHED_BYTES = 4 << 30
"""Up to this size every opening hashes every shard (about 0.1 s a GiB from memory). Above it a file is hashed
when it was not yet hashed with its present size, times and inode on this machine."""
_STAMPS_NAME = "checked.json"


class DamagedStore(Exception):
    """A store's folder is not what its index says; ``shards`` are the numbers to make again (empty: all)."""

    def __init__(self, reason: str, *, shards: Sequence[int] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.shards = tuple(shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStore:
    """One source, tokenised. Documents lie back to back in a flat token space that spans the shards.

    Shapes:
        lengths, starts, prompt_lengths, hashes: one entry a document, in the order of the source.
        shards: one read-only vector of tokens a shard; ``shard_bases[i]`` is where shard ``i`` starts in the
            flat space, with one more entry that is its end. No document spans two shards.
    """

    key: str
    folder: Path
    tokenizer_fingerprint: str
    vocab_size: int
    num_documents: int
    num_tokens: int
    lengths: np.ndarray
    starts: np.ndarray
    prompt_lengths: np.ndarray
    hashes: np.ndarray
    shards: tuple[np.ndarray, ...] = field(repr=False)
    shard_bases: np.ndarray
    counts: SourceCounts
    text_field: str
    """The field that held the text, empty where records are plain text."""
    description: dict[str, Any]
    """What the store was made from: path, options, xxh3 of the inputs."""

    def gather(self, starts: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copy the given spans of the flat space one after another into ``out``; return ``out``.

        Shapes:
            starts, lengths: equal 1-d; out: 1-d with room for ``lengths.sum()``. A span lies in one document.
        """
        shard_of = np.searchsorted(self.shard_bases, starts, side="right") - 1
        offsets = starts - self.shard_bases[shard_of]
        place = 0
        for shard, offset, length in zip(shard_of.tolist(), offsets.tolist(), lengths.tolist(), strict=True):
            out[place : place + length] = self.shards[shard][offset : offset + length]
            place += length
        return out

    def document(self, number: int) -> np.ndarray:
        """Return the tokens of one document."""
        start = int(self.starts[number])
        shard = int(np.searchsorted(self.shard_bases[1:-1], start, side="right"))  # an empty one may lie behind the end
        offset = start - int(self.shard_bases[shard])
        return self.shards[shard][offset : offset + int(self.lengths[number])]


def write_index(
    folder: Path, *, key: str, notes: Sequence[ShardNote], tokenizer: dict[str, Any], description: dict[str, Any]
) -> None:
    """Write ``index.json`` over finished shards."""
    counts = SourceCounts()
    for note in notes:
        counts.add(note.counts)
    index = {
        "format": "trireme tokens",
        "format_version": FORMAT_VERSION,
        "key": key,
        "token_dtype": token_dtype(tokenizer["vocab_size"]).str,
        "document_dtype": DOCUMENT_DTYPE.descr,
        "tokenizer": tokenizer,
        "source": description,
        "counts": counts.as_json(),
        "shards": [note.as_json() for note in notes],
    }
    write_durably(folder / INDEX_NAME, sealed(index))


def open_store(folder: Path, *, verify: bool = True) -> TokenStore:
    """Map a finished store into memory after checking it.

    Raises:
        DamagedStore: A file is missing, of another size, or of other content than the index says.
    """
    index = _read_index(folder)
    notes = [ShardNote.from_json(values) for values in index["shards"]]
    _check_sizes(folder, notes)
    if verify:
        _check_content(folder, notes)
    return _assemble(folder, index, notes)


def _read_index(folder: Path) -> dict[str, Any]:
    try:
        index = unsealed((folder / INDEX_NAME).read_bytes())
    except (OSError, ValueError, AttributeError) as error:
        raise DamagedStore(f"{INDEX_NAME}: {error}") from error
    if index.get("format_version") != FORMAT_VERSION:
        raise DamagedStore(f"{INDEX_NAME}: format_version {index.get('format_version')}")
    return index


def _check_sizes(folder: Path, notes: Sequence[ShardNote]) -> None:
    for note in notes:
        for name, (size_bytes, _) in note.files.items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != size_bytes:
                raise DamagedStore(name, shards=[note.number])


def _check_content(folder: Path, notes: Sequence[ShardNote]) -> None:
    total_bytes = sum(size for note in notes for size, _ in note.files.values())
    stamps = _read_stamps(folder) if total_bytes > ALWAYS_HASHED_BYTES else {}
    fresh: dict[str, list[int]] = {}
    for note in notes:
        for name, (_, digest) in note.files.items():
            stamp = file_stamp(folder / name)
            if stamps.get(name) != stamp and hash_file(folder / name) != digest:
                raise DamagedStore(name, shards=[note.number])
            fresh[name] = stamp
    if total_bytes > ALWAYS_HASHED_BYTES and fresh != stamps:
        with contextlib.suppress(Exception):  # a shared read-only cache is hashed each time
            write_durably(folder / _STAMPS_NAME, json.dumps(fresh).encode())


def file_stamp(path: Path) -> list[int]:
    """Return what changes whenever a file's content is written: size, both times, inode, device."""
    facts = path.stat()
    return [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino, facts.st_dev]


def _read_stamps(folder: Path) -> dict[str, list[int]]:
    try:
        stamps: dict[str, list[int]] = json.loads((folder / _STAMPS_NAME).read_bytes())
    except (OSError, ValueError):
        return {}
    return stamps


def _assemble(folder: Path, index: dict[str, Any], notes: Sequence[ShardNote]) -> TokenStore:
    dtype = np.dtype(index["token_dtype"])
    tables = [np.fromfile(folder / shard_name(note.number, "documents"), dtype=DOCUMENT_DTYPE) for note in notes]
    table = np.concatenate([np.empty(0, DOCUMENT_DTYPE), *tables])
    lengths = np.ascontiguousarray(table["length"])
    bases = np.concatenate([[0], np.cumsum([note.num_tokens for note in notes], dtype=np.int64)]).astype(np.int64)
    return TokenStore(
        key=index["key"],
        folder=folder,
        tokenizer_fingerprint=index["tokenizer"]["fingerprint"],
        vocab_size=index["tokenizer"]["vocab_size"],
        num_documents=len(table),
        num_tokens=int(bases[-1]),
        lengths=lengths,
        starts=np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64) if len(table) else lengths,
        prompt_lengths=np.ascontiguousarray(table["prompt_length"]),
        hashes=np.ascontiguousarray(table["hash"]),
        shards=tuple(_map(folder / shard_name(note.number, "tokens"), dtype) for note in notes),
        shard_bases=bases,
        counts=SourceCounts.from_json(index["counts"]),
        text_field=index["source"].get("text_field", ""),
        description=index["source"],
    )


def _map(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    if path.stat().st_size == 0:
        return np.empty(0, dtype)
    return np.memmap(path, dtype=dtype, mode="r")
