"""However a run is stopped, and on whatever ranks and workers it goes on: one stream of samples."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory_stream import make_store, make_stream
from trireme.data import Loader

BATCH_SEQS, NUM_STEPS = 6, 12
STREAM = make_stream(make_store([5, 9, 3, 8, 13, 2, 7, 4, 6, 11] * 4), make_store([6] * 11, first_token=900))
SEGMENT = st.tuples(st.integers(1, 5), st.sampled_from([1, 2, 3, 5]), st.integers(0, 2))
"""Steps until the kill, data-parallel ranks, batches read ahead when it comes."""


@given(segments=st.lists(SEGMENT, min_size=1, max_size=6))
@settings(max_examples=40)
def test_any_sequence_of_ranks_and_kills_gives_the_one_true_stream(segments: list[tuple[int, int, int]]) -> None:
    """CKP-06, CKP-20: what is read again after a kill is the same; nothing is lost and nothing comes twice."""
    seen: list[list[int]] = []
    for length, degree, lost in [*segments, (NUM_STEPS, 1, 0)]:
        first = max(0, len(seen) - lost)  # back to a checkpoint: the steps after it are done again
        last = min(NUM_STEPS, first + length)
        again = [_step_ids(step, degree=degree) for step in range(first, last)]
        assert seen[first:last] == again[: len(seen) - first]
        seen[first:last] = again
    assert seen == [STREAM.ids_at(step, global_batch_seqs=BATCH_SEQS).tolist() for step in range(NUM_STEPS)]


def test_workers_that_read_ahead_change_nothing_when_they_are_killed_and_others_go_on() -> None:
    """CKP-20: (ranks 2, workers 2) until a kill, then (1, 0), (2, 1), (4, 2)."""
    stops = [(3, 2, 2), (5, 1, 0), (8, 2, 1), (NUM_STEPS, 4, 2)]
    seen, first = [], 0
    for last, degree, workers in stops:
        loaders = [
            Loader(STREAM, global_batch_seqs=BATCH_SEQS, first_step=first, dp_rank=r, dp_degree=degree, workers=workers)
            for r in range(degree)
        ]
        for _ in range(first, last):
            seen.append(np.concatenate([next(loader).sample_ids for loader in loaders]).tolist())
        for loader in loaders:
            loader.close()
        first = last
    assert seen == [STREAM.ids_at(step, global_batch_seqs=BATCH_SEQS).tolist() for step in range(NUM_STEPS)]


def _step_ids(step: int, *, degree: int) -> list[int]:
    parts = [STREAM.read(step, global_batch_seqs=BATCH_SEQS, dp_rank=r, dp_degree=degree) for r in range(degree)]
    return np.concatenate([part.sample_ids for part in parts]).tolist()
