"""Mixing: exact shares at every prefix, epochs of each source apart."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory_stream import make_store, make_stream, one_row_documents
from trireme.data.mix import MAX_PERIOD, build_mixture, build_schedule
from trireme.errors import DataError


@given(turns=st.lists(st.integers(1, 40), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_every_prefix_is_within_one_of_its_exact_share(turns: list[int]) -> None:
    schedule = build_schedule(turns)
    period = sum(turns)
    for pool, share in enumerate(turns):
        counts = np.cumsum(schedule == pool)
        exact = np.arange(1, period + 1) * share
        assert (np.abs(counts * period - exact) < period).all()
        assert counts[-1] == share


def test_weights_are_exact_fractions() -> None:
    mixture = build_mixture([5, 5, 5], weights=[0.1, 0.2, 0.7])
    assert [pool.turns for pool in mixture.pools] == [1, 2, 7]
    assert not mixture.rounded


def test_weights_without_a_short_period_are_rounded_and_nobody_is_left_out() -> None:
    weights = [0.1234567, 1e-9, 0.7]
    mixture = build_mixture([5, 5, 5], weights=weights)
    assert mixture.rounded
    assert mixture.period == MAX_PERIOD
    assert min(pool.turns for pool in mixture.pools) == 1
    for pool, weight in zip(mixture.pools, weights, strict=True):
        assert abs(Fraction(pool.turns, MAX_PERIOD) - Fraction(weight / sum(weights))) <= Fraction(2, MAX_PERIOD)


@pytest.mark.parametrize("weights", [[1.0, 1.1] + [1e-9] * 40_000, [1.0, *[0.999] * 70_000], [1e-300, 1e300]])
def test_no_weights_are_too_many_or_too_uneven_to_be_rounded(weights: list[float]) -> None:
    mixture = build_mixture([1] * len(weights), weights=weights)
    assert min(pool.turns for pool in mixture.pools) >= 1
    assert mixture.period == sum(pool.turns for pool in mixture.pools) <= max(MAX_PERIOD, 2 * len(weights))


def test_a_long_schedule_of_many_sources_is_within_one_too() -> None:
    turns = np.random.default_rng(3).integers(1, 400, 200).tolist()
    schedule = build_schedule(turns)
    for pool in (0, 57, 199):
        counts = np.cumsum(schedule == pool)
        exact = np.arange(1, len(schedule) + 1) * turns[pool]
        assert (np.abs(counts * len(schedule) - exact) < len(schedule)).all()


def test_without_weights_an_epoch_is_each_sample_once() -> None:
    stream = make_stream(make_store(one_row_documents(9)), make_store(one_row_documents(4)))
    ids = np.concatenate([stream.ids_at(step, global_batch_seqs=13) for step in range(3)])
    assert (np.sort(ids.reshape(3, 13), axis=1) == np.arange(13)).all()


def test_with_weights_each_source_has_epochs_of_its_own() -> None:
    stores = make_store(one_row_documents(10)), make_store(one_row_documents(6))
    stream = make_stream(*stores, weights=(0.25, 0.75))
    ids = stream.ids_at(0, global_batch_seqs=80)
    small, large = ids[ids >= 10] - 10, ids[ids < 10]
    assert (np.sort(small.reshape(10, 6), axis=1) == np.arange(6)).all()
    assert (np.sort(large.reshape(2, 10), axis=1) == np.arange(10)).all()


def test_dat_06_a_tiny_and_a_huge_weight_give_their_counts_without_running_out() -> None:
    """Two sources of 50 samples, weights 0.001 and 0.999, 200 steps of 4."""
    stores = make_store(one_row_documents(50)), make_store(one_row_documents(50))
    stream = make_stream(*stores, weights=(0.001, 0.999))
    counts = np.zeros(2)
    for step in range(200):
        batch = stream.read(step, global_batch_seqs=4)
        counts += np.bincount(batch.sample_ids // 50, minlength=2)
        planned = stream.drawn_per_source(step + 1, global_batch_seqs=4)
        assert planned == counts.tolist()
    assert abs(counts[0] - 0.8) <= 1
    assert abs(counts[1] - 799.2) <= 1


def test_some_weights_given_and_some_not_is_an_error_that_names_the_source() -> None:
    with pytest.raises(DataError, match="source 1 has none"):
        build_mixture([5, 5, 5], weights=[0.5, None, 0.5])


def test_a_weight_on_a_source_without_samples_is_an_error() -> None:
    with pytest.raises(DataError, match=r"data\.sources\.1"):
        build_mixture([5, 0], weights=[0.5, 0.5])
