"""Token stores that live in memory, and streams over them: the tests' stand-in for tokenised files."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np

from trireme.data.assemble import build_stream, plan_part
from trireme.data.pack import PackRules
from trireme.data.sample_map import SampleMap
from trireme.data.stream import SampleStream

VOCAB_SIZE = 50_000
TOKENIZER = SimpleNamespace(pad_id=7, fingerprint="f" * 32)


def make_store(lengths: Any, *, prompt_lengths: Any = None, num_shards: int = 1, first_token: int = 0) -> Any:
    """Return a store whose tokens count up from ``first_token``, so that a label is its input plus one."""
    lengths = np.asarray(lengths, dtype=np.int64)
    total = int(lengths.sum())
    starts = np.cumsum(lengths) - lengths
    tokens = ((first_token + np.arange(total)) % VOCAB_SIZE).astype(np.uint16)
    cuts = [int(part[0]) for part in np.array_split(starts, num_shards) if len(part)]
    bases = np.array([*cuts, total], dtype=np.int64)
    return SimpleNamespace(
        lengths=lengths,
        starts=starts,
        prompt_lengths=np.zeros(len(lengths), np.int32) if prompt_lengths is None else np.asarray(prompt_lengths),
        hashes=np.arange(len(lengths), dtype=np.uint64) + np.uint64(first_token),
        shards=tuple(tokens[begin:end] for begin, end in pairwise(bases)),
        shard_bases=bases,
    )


def make_stream(
    *stores: Any,
    seq_len: int = 8,
    seed: int = 1,
    weights: tuple[float | None, ...] = (),
    sample_map: str | None = None,
    **rules: Any,
) -> SampleStream:
    """Return a stream over whole stores."""
    pack_rules = PackRules(seq_len=seq_len, seed=seed, **rules)
    parts = [
        plan_part(
            store,
            name=f"source {number}",
            weight=weights[number] if weights else None,
            chosen=np.ones(len(store.lengths), dtype=bool),
            rules=pack_rules,
        )
        for number, store in enumerate(stores)
    ]
    mapped = SampleMap(sample_map, seed=seed, vocab_size=VOCAB_SIZE) if sample_map else None
    return build_stream(parts, seed=seed, tokenizer=TOKENIZER, sample_map=mapped)


def one_row_documents(count: int, *, seq_len: int = 8) -> list[int]:
    """Return lengths of documents that fill a row each, so that documents are samples."""
    return [seq_len + 1] * count
