"""From tokenised sources to a stream: pick documents, plan rows, number samples, name what it all depends on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trireme.data.identity import StreamIdentity, identify_source
from trireme.data.pack import PackPlan, PackRules
from trireme.data.plan_file import find_plan
from trireme.data.sample_map import SampleMap
from trireme.data.stream import SampleStream, StreamSource
from trireme.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePart:
    """Some documents of a store, planned. Shapes: documents [N] int64, numbers within the store."""

    name: str
    weight: float | None
    store: Any
    documents: np.ndarray
    plan: PackPlan


def plan_part(store: Any, *, name: str, weight: float | None, chosen: np.ndarray, rules: PackRules) -> SourcePart:
    """Return the chosen documents of a store with their plan. Shapes: chosen [num_documents] bool."""
    documents = np.flatnonzero(chosen)
    plan = find_plan(store, documents=documents, rules=rules, source=name)
    return SourcePart(name=name, weight=weight, store=store, documents=documents, plan=plan)


def build_stream(
    parts: Sequence[SourcePart], *, seed: int, tokenizer: Any, sample_map: SampleMap | None = None
) -> SampleStream:
    """Return the stream over ``parts``; of the tokenizer only ``pad_id`` and ``fingerprint`` are asked.

    Raises:
        DataError: There is no sample, or the weights can't be mixed.
    """
    if not any(part.plan.num_rows for part in parts):
        raise DataError("sample.nothing_to_train", documents=sum(part.plan.counts.num_documents for part in parts))
    bases = np.concatenate([[0], np.cumsum([part.plan.num_rows for part in parts])]).tolist()
    sources = tuple(
        StreamSource(name=part.name, weight=part.weight, base_id=base, store=part.store, plan=part.plan)
        for part, base in zip(parts, bases[:-1], strict=True)
    )
    identity = _identify(parts, seed=seed, tokenizer=tokenizer.fingerprint, sample_map=sample_map)
    return SampleStream(sources, seed=seed, pad_id=tokenizer.pad_id, identity=identity, sample_map=sample_map)


def _identify(
    parts: Sequence[SourcePart], *, seed: int, tokenizer: str, sample_map: SampleMap | None
) -> StreamIdentity:
    rules = parts[0].plan.rules
    return StreamIdentity(
        tokenizer=tokenizer,
        seq_len=rules.seq_len,
        packing=rules.packing,
        long_documents=rules.long_documents,
        seed=seed,
        sample_map=f"{sample_map.name} ({sample_map.fingerprint[:8]})" if sample_map else None,
        weights=tuple(part.weight for part in parts),
        sources=tuple(
            identify_source(part.store, documents=part.documents, rows=part.plan.row_offsets) for part in parts
        ),
    )
