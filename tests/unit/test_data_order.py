"""Order of samples: a pure function of (seed, position), each sample once an epoch of its source."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory_stream import make_store, make_stream, one_row_documents
from trireme.data.mix import build_mixture
from trireme.data.order import SampleOrder, share_of_rank
from trireme.data.permute import derive_key, derive_keys, permute

FIVE_SIGMA = 5.0
"""Chance alone passes this about once in two million draws."""


@given(size=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_each_key_permutes_every_size(size: int, key: int) -> None:
    keys = derive_keys(key, np.zeros(1, dtype=np.int64))
    assert sorted(permute(np.arange(size), size=size, keys=keys)) == list(range(size))


def test_seeking_in_a_huge_permutation_needs_no_index() -> None:
    size = 10**15 + 3
    places = np.array([0, 1, size - 1])
    values = permute(places, size=size, keys=derive_keys(1, np.zeros(1, dtype=np.int64)))
    assert len(set(values.tolist())) == 3
    assert (values >= 0).all()
    assert (values < size).all()


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 50, 64, 65])
def test_every_place_gets_every_value_equally_often_over_keys(size: int) -> None:
    draws = 20_000
    for place in (0, size - 1):
        places = np.full(draws, place, dtype=np.int64)
        values = permute(places, size=size, keys=derive_keys(derive_key(size), np.arange(draws)))
        counts = np.bincount(values, minlength=size)
        chi_square = ((counts - draws / size) ** 2 / (draws / size)).sum()
        assert chi_square < size - 1 + FIVE_SIGMA * np.sqrt(2 * (size - 1))


def test_all_orders_of_four_come_up_equally_often() -> None:
    draws, orders = 12_000, 24
    keys = derive_keys(5, np.repeat(np.arange(draws), 4))
    values = permute(np.tile(np.arange(4), draws), size=4, keys=keys).reshape(draws, 4)
    _, counts = np.unique(values, axis=0, return_counts=True)
    assert len(counts) == orders
    chi_square = ((counts - draws / orders) ** 2 / (draws / orders)).sum()
    assert chi_square < orders - 1 + FIVE_SIGMA * np.sqrt(2 * (orders - 1))


def test_each_epoch_has_each_sample_once_in_another_order() -> None:
    order = SampleOrder(build_mixture([37], weights=[None]), seed=3)
    drawn = order.at(0, 37 * 50)
    epochs = drawn.ids.reshape(50, 37)
    assert (np.sort(epochs, axis=1) == np.arange(37)).all()
    assert len({tuple(row) for row in epochs.tolist()}) == 50
    assert (drawn.epochs == np.repeat(np.arange(50), 37)).all()


def test_another_seed_gives_another_order() -> None:
    mixture = build_mixture([1000], weights=[None])
    first, second = (SampleOrder(mixture, seed=seed).at(0, 1000).ids for seed in (1, 2))
    assert (first != second).mean() > 0.9


@given(start=st.integers(0, 20_000), count=st.integers(0, 9000), size=st.integers(1, 5000))
@settings(max_examples=30, deadline=None)
def test_any_run_of_positions_is_what_single_lookups_give(start: int, count: int, size: int) -> None:
    order = SampleOrder(build_mixture([size, 7], weights=[0.7, 0.3]), seed=11)
    run = order.at(start, start + count)
    fresh = SampleOrder(build_mixture([size, 7], weights=[0.7, 0.3]), seed=11)
    for offset in {0, count // 2, count - 1} if count else ():
        one = fresh.at(start + offset, start + offset + 1)
        assert run.ids[offset] == one.ids[0]
        assert run.epochs[offset] == one.epochs[0]


@given(count=st.integers(0, 200), degree=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_shares_of_ranks_cover_the_batch_once_and_differ_by_at_most_one(count: int, degree: int) -> None:
    parts = [share_of_rank(count, dp_rank=rank, dp_degree=degree) for rank in range(degree)]
    assert [place for part in parts for place in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in parts]
    assert max(sizes) - min(sizes) <= 1


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    batch=st.integers(1, 30),
    pieces=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6)), min_size=1, max_size=6),
    weighted=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_dat_02_the_stream_is_the_same_for_any_ranks_and_kill_points(
    sizes: list[int], batch: int, pieces: list[tuple[int, int]], weighted: bool
) -> None:
    """Runs of (ranks, steps until the kill) one after another give what one rank gives without a kill."""
    stores = [make_store(one_row_documents(size)) for size in sizes]
    weights = tuple(float(number + 1) for number in range(len(sizes))) if weighted else ()
    unbroken = make_stream(*stores, weights=weights)
    step = 0
    for degree, steps in pieces:
        resumed = make_stream(*stores, weights=weights)
        for _ in range(steps):
            parts = [
                resumed.read(step, global_batch_seqs=batch, dp_rank=rank, dp_degree=degree).sample_ids
                for rank in range(degree)
            ]
            assert np.concatenate(parts).tolist() == unbroken.ids_at(step, global_batch_seqs=batch).tolist()
            step += 1


def test_dat_03_ranks_agree_on_the_number_of_batches_when_nothing_divides() -> None:
    """21 samples, batch 2, two ranks, two epochs: 21 steps on both ranks, each sample exactly twice."""
    stream = make_stream(make_store(one_row_documents(13)), make_store(one_row_documents(8)))
    seen: list[int] = []
    for step in range(21):
        parts = [stream.read(step, global_batch_seqs=2, dp_rank=rank, dp_degree=2) for rank in range(2)]
        assert [len(part.sample_ids) for part in parts] == [1, 1]
        seen += [int(i) for part in parts for i in part.sample_ids]
    assert sorted(seen) == sorted([*range(21), *range(21)])
