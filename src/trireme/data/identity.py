"""What a stream is made of, as a few hashes: two streams with equal parts give equal samples at every step."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from trireme.errors import CheckpointError
from trireme.words import say

STATE_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SourceIdentity:
    """One source as hashes: of the texts, of the tokens they became, of the rows the tokens became."""

    texts: str
    tokens: str
    rows: str


@dataclass(frozen=True, kw_only=True)
class StreamIdentity:
    """Everything the samples of a stream depend on."""

    tokenizer: str
    seq_len: int
    packing: str
    long_documents: str
    seed: int
    sample_map: str | None
    weights: tuple[float | None, ...]
    sources: tuple[SourceIdentity, ...]

    @cached_property
    def parts(self) -> dict[str, Any]:
        """Return plain JSON values, the causes before what follows from them."""
        return {
            "tokenizer": self.tokenizer,
            "seq_len": self.seq_len,
            "packing": self.packing,
            "long_documents": self.long_documents,
            "seed": self.seed,
            "sample_map": self.sample_map,
            "weights": list(self.weights),
            "sources": [[source.texts, source.tokens, source.rows] for source in self.sources],
        }

    @cached_property
    def fingerprint(self) -> str:
        """xxh3-128 (hex) over all parts."""
        return xxhash.xxh3_128_hexdigest(json.dumps(self.parts, sort_keys=True).encode())

    def state(self, step: int, *, global_batch_seqs: int) -> dict[str, Any]:
        """Return what a checkpoint keeps of the data: the place in the stream and what the stream is."""
        place = {"step": step, "global_batch_seqs": global_batch_seqs, "samples": step * global_batch_seqs}
        return {"format": STATE_FORMAT, **place, "fingerprint": self.fingerprint, "parts": self.parts}

    def check_state(self, state: Mapping[str, Any], *, global_batch_seqs: int | None = None) -> None:
        """Return if a run with ``state`` would go on with exactly the samples it would have had.

        Raises:
            CheckpointError: It would not; the message names what changed.
        """
        if state.get("format") != STATE_FORMAT or "parts" not in state:
            raise CheckpointError("sample.unknown_state", format=state.get("format"), known=STATE_FORMAT)
        changes = list(_changes(state["parts"], self.parts)) if state["fingerprint"] != self.fingerprint else []
        before = state["global_batch_seqs"]
        if global_batch_seqs is not None and before != global_batch_seqs:
            changes.append(say("sample.changed_value", name="global_batch_seqs", before=before, now=global_batch_seqs))
        if changes:
            raise CheckpointError("sample.data_changed", step=state["step"], changes="; ".join(changes))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    changes = []
    for name in ("seq_len", "packing", "long_documents", "seed", "sample_map", "weights"):
        if before.get(name) != now[name]:
            changes.append(say("sample.changed_value", name=name, before=before.get(name), now=now[name]))
    if before["tokenizer"] != now["tokenizer"]:
        changes.insert(0, say("sample.changed_tokenizer", before=before["tokenizer"][:8], now=now["tokenizer"][:8]))
    return changes + _source_changes(before["sources"], now["sources"], explained=bool(changes))


def _source_changes(before: list[list[str]], now: list[list[str]], *, explained: bool) -> list[str]:
    """Name what differs in each source; tokens and rows only where nothing said so far explains it."""
    if len(before) != len(now):
        return [say("sample.changed_value", name="number of sources", before=len(before), now=len(now))]
    changes = []
    for index, (old, new) in enumerate(zip(before, now, strict=True)):
        if old[0] != new[0]:
            changes.append(say("sample.changed_texts", index=index))
        elif old[1] != new[1] and not explained:
            changes.append(say("sample.changed_tokens", index=index))
        elif old[2] != new[2] and not explained:
            changes.append(say("sample.changed_rows", index=index))
    return changes


def identify_source(store: Any, *, documents: np.ndarray, rows: np.ndarray) -> SourceIdentity:
    """Return the hashes of one source.

    Shapes:
        documents: numbers of the documents used. rows: the row offsets of their plan.
    """
    return SourceIdentity(
        texts=short_hash(store.hashes),
        tokens=short_hash(store.lengths, store.prompt_lengths),
        rows=short_hash(documents, rows),
    )


def short_hash(*arrays: np.ndarray) -> str:
    """Return xxh3-64 (hex) over the bytes of ``arrays``."""
    digest = xxhash.xxh3_64()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
