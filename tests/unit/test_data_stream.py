"""Streams: rows as arrays, state, evaluation, functions on samples."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory_stream import TOKENIZER, make_store, make_stream, one_row_documents
from trireme.data import gather
from trireme.data.batch import Batch
from trireme.data.stream import SampleStream
from trireme.errors import CheckpointError, DataError

FEW_HUNDRED_BYTES = 700
RELATIVE_ERROR = 1e-12
"""Sums of whole numbers in float64."""


def rows_by_hand(stream: SampleStream, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Return what ``read`` must give, token by token in plain Python."""
    shape = (len(ids), stream.seq_len)
    out = {
        "input_ids": np.full(shape, TOKENIZER.pad_id),
        "labels": np.full(shape, -100),
        "position_ids": np.zeros(shape, dtype=int),
        "document_ids": np.full(shape, -1),
    }
    for line, sample_id in enumerate(ids):
        source = stream.source_of(int(sample_id))
        plan, store, place = source.plan, source.store, 0
        tokens = np.concatenate(store.shards)
        row = int(sample_id) - source.base_id
        for number, segment in enumerate(range(plan.row_offsets[row], plan.row_offsets[row + 1])):
            document, start = int(plan.documents[segment]), int(plan.starts[segment])
            for offset in range(int(plan.lengths[segment])):
                at = int(store.starts[document]) + start + offset
                out["input_ids"][line, place] = tokens[at]
                if start + offset + 1 >= store.prompt_lengths[document]:
                    out["labels"][line, place] = tokens[at + 1]
                out["position_ids"][line, place] = offset
                out["document_ids"][line, place] = number
                place += 1
        out["position_ids"][line, place:] = np.arange(stream.seq_len - place)
    return out


def assert_batch_is(batch: Batch, expected: dict[str, np.ndarray]) -> None:
    for name, values in expected.items():
        array = getattr(batch, name)
        assert array.dtype == np.int32
        assert array.tolist() == values.tolist(), name
    assert batch.num_real_tokens == (expected["document_ids"] >= 0).sum()
    assert batch.num_target_tokens == (expected["labels"] != -100).sum()


@given(
    lengths=st.lists(st.integers(2, 40), min_size=3, max_size=25),
    prompts=st.lists(st.integers(0, 12), min_size=25, max_size=25),
    num_shards=st.integers(1, 3),
    seq_len=st.integers(2, 20),
    packing=st.sampled_from(["isolate", "none"]),
    way=st.sampled_from([(0, 0), (0, 1 << 20), (1 << 20, 0), (1 << 20, 1 << 20)]),
)
@settings(max_examples=80, deadline=None)
def test_arrays_are_what_the_plan_says_by_every_way_of_copying(
    lengths: list[int], prompts: list[int], num_shards: int, seq_len: int, packing: str, way: tuple[int, int]
) -> None:
    """``way``: from which mean length slices are taken, up to which size shards are joined."""
    prompt_lengths = [min(prompt, length - 1) for prompt, length in zip(prompts, lengths, strict=False)]
    stores = (
        make_store(lengths, prompt_lengths=prompt_lengths, num_shards=num_shards),
        make_store(lengths[:2], first_token=20_000),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gather, "_LONG_SEGMENT_TOKENS", way[0])
        patch.setattr(gather, "_JOINED_BYTES", way[1])
        stream = make_stream(*stores, seq_len=seq_len, packing=packing)
        batch = stream.read(0, global_batch_seqs=stream.num_samples)
    assert sorted(batch.sample_ids.tolist()) == list(range(stream.num_samples))
    assert_batch_is(batch, rows_by_hand(stream, batch.sample_ids))


def test_a_rank_without_a_sample_gets_an_empty_batch() -> None:
    stream = make_stream(make_store(one_row_documents(5)))
    batch = stream.read(0, global_batch_seqs=1, dp_rank=0, dp_degree=2)
    assert batch.input_ids.shape == (0, 8)
    assert batch.num_target_tokens == 0


def test_handing_out_ids_does_not_let_anyone_change_the_order() -> None:
    stream = make_stream(make_store(one_row_documents(5)))
    with pytest.raises(ValueError, match="read-only"):
        stream.ids_at(0, global_batch_seqs=4)[0] = 3


def test_a_pickled_stream_reads_the_same() -> None:
    stream = make_stream(make_store([30, 5, 9]), make_store([7, 7]), weights=(0.5, 0.5))
    copied = pickle.loads(pickle.dumps(stream))
    for step in range(3):
        mine, theirs = (s.read(step, global_batch_seqs=5) for s in (stream, copied))
        assert (mine.labels == theirs.labels).all()
    assert copied.fingerprint == stream.fingerprint


@pytest.mark.parametrize("degree", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("batch_seqs", [1, 2, 5])
def test_dat_04_evaluation_counts_each_sample_once_for_any_ranks(degree: int, batch_seqs: int) -> None:
    """Seven samples; the token-weighted mean of a made-up loss is the same for every partition."""
    stream = make_stream(make_store([9, 9, 5, 3, 9, 9, 6, 9, 9]), packing="none")
    stream_of_seven = {"limit_seqs": 7, "batch_seqs": batch_seqs, "dp_degree": degree}
    seen: list[int] = []
    loss_sum = count = 0.0
    batches_per_rank = set()
    for rank in range(degree):
        batches = list(stream.eval_batches(dp_rank=rank, **stream_of_seven))
        batches_per_rank.add(len(batches))
        for batch in batches:
            assert len(batch.sample_ids) <= batch_seqs
            seen += batch.sample_ids.tolist()
            loss_sum += float(np.sqrt(batch.labels[batch.labels != -100]).sum())
            count += batch.num_target_tokens
    assert len(batches_per_rank) == 1
    assert len(seen) == len(set(seen)) == 7
    whole = next(iter(stream.eval_batches(batch_seqs=7, limit_seqs=7)))
    expected = np.sqrt(whole.labels[whole.labels != -100]).mean()
    assert loss_sum / count == pytest.approx(expected, rel=RELATIVE_ERROR)


def test_state_is_small_plain_and_the_same_wherever_it_is_taken() -> None:
    stream = make_stream(make_store(one_row_documents(20)))
    state = stream.state(7, global_batch_seqs=4)
    text = json.dumps(state)
    assert len(text) < FEW_HUNDRED_BYTES
    stream.check_state(json.loads(text), global_batch_seqs=4)
    again = make_stream(make_store(one_row_documents(20)))
    again.check_state(state)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seq_len": 16}, "seq_len was 8, is 16"),
        ({"seed": 2}, "seed was 1, is 2"),
        ({"packing": "none"}, "packing was isolate, is none"),
        ({"long_documents": "drop"}, "long_documents was split, is drop"),
        ({"weights": (0.5, 0.5)}, "weights was"),
        ({"sample_map": "tests.unit.sample_maps:keep"}, "sample_map was None"),
    ],
)
def test_changed_options_are_named_when_a_state_is_checked(change: dict[str, Any], message: str) -> None:
    stores = make_store(one_row_documents(9)), make_store(one_row_documents(9))
    state = make_stream(*stores).state(3, global_batch_seqs=4)
    with pytest.raises(CheckpointError, match=message) as caught:
        make_stream(*stores, **change).check_state(state)
    assert "step 3" in str(caught.value)


def test_changed_sources_are_named_when_a_state_is_checked() -> None:
    one, two = make_store(one_row_documents(9)), make_store(one_row_documents(9))
    state = make_stream(one, two).state(3, global_batch_seqs=4)
    with pytest.raises(CheckpointError, match=r"data\.sources\.1 has other documents"):
        make_stream(one, make_store(one_row_documents(9), first_token=1)).check_state(state)
    with pytest.raises(CheckpointError, match="number of sources was 2, is 1"):
        make_stream(one).check_state(state)
    longer = make_store([9] * 8 + [10])
    longer.hashes = two.hashes
    with pytest.raises(CheckpointError, match=r"data\.sources\.1 become other tokens"):
        make_stream(one, longer).check_state(state)
    with pytest.raises(CheckpointError, match="global_batch_seqs was 4, is 8"):
        make_stream(one, two).check_state(state, global_batch_seqs=8)
    with pytest.raises(CheckpointError, match="format 99"):
        make_stream(one, two).check_state({**state, "format": 99})


def test_a_changed_tokenizer_is_named_and_its_consequences_are_not() -> None:
    store = make_store(one_row_documents(9))
    state = make_stream(store).state(3, global_batch_seqs=4)
    state["parts"]["tokenizer"], state["fingerprint"] = "0" * 32, "x"
    with pytest.raises(CheckpointError, match=r"another tokenizer \(00000000") as caught:
        make_stream(make_store([9] * 8 + [10])).check_state(state)
    assert "sources.0" not in str(caught.value)


def drawn_inputs(stream: SampleStream, *, steps: int, degree: int) -> dict[tuple[int, int], list[int]]:
    """Return the first four inputs of each (epoch, sample)."""
    found = {}
    for step in range(steps):
        for rank in range(degree):
            batch = stream.read(step, global_batch_seqs=6, dp_rank=rank, dp_degree=degree)
            for sample_id, row in zip(batch.sample_ids.tolist(), batch.input_ids.tolist(), strict=True):
                epoch = next(e for e in range(99) if (e, sample_id) not in found)
                found[epoch, sample_id] = row[:4]
    return found


def test_dat_05_random_functions_repeat_across_runs_and_ranks_but_never_across_samples_and_epochs() -> None:
    """Draws from the given generator, python, numpy and torch."""
    make = lambda: make_stream(  # noqa: E731
        make_store(one_row_documents(12)), sample_map="tests.unit.sample_maps:draw_from_everywhere"
    )
    random.seed(1)
    np.random.seed(1)
    one_rank = drawn_inputs(make(), steps=4, degree=1)
    random.seed(2)
    np.random.seed(2)
    three_ranks = drawn_inputs(make(), steps=4, degree=3)
    assert one_rank == three_ranks
    assert len(one_rank) == 24
    for source in range(4):
        assert len({row[source] for row in one_rank.values()}) > 15
    assert all(one_rank[0, sample] != one_rank[1, sample] for sample in range(12))


def test_dat_05_global_generators_are_left_as_they_were() -> None:
    import torch

    stream = make_stream(make_store(one_row_documents(4)), sample_map="tests.unit.sample_maps:draw_from_everywhere")
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    expected = (random.random(), np.random.random(), torch.rand(()).item())
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    stream.read(0, global_batch_seqs=4)
    assert (random.random(), np.random.random(), torch.rand(()).item()) == expected


def test_tokens_are_counted_after_the_function() -> None:
    store = make_store(one_row_documents(8))
    stream = make_stream(store, sample_map="tests.unit.sample_maps:mask_some_labels")
    batch = stream.read(0, global_batch_seqs=8)
    assert batch.num_target_tokens == (batch.labels != -100).sum() < batch.num_real_tokens == 64


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shorten", r"input_ids of shape \(7,\) for sample \d.*shape \(8,\)"),
        ("return_nothing", "returned a NoneType"),
        ("forget_labels", r"fields \[input_ids, position_ids, document_ids\]"),
        ("use_floats", "position_ids as float64"),
        ("leave_vocabulary", "1000000 in input_ids.*ends at 50000"),
        ("leave_sample", "1099511627776 in position_ids.*below the 8 places"),
    ],
)
def test_a_function_that_returns_no_sample_is_told_what_a_sample_is(name: str, message: str) -> None:
    stream = make_stream(make_store(one_row_documents(4)), sample_map=f"tests.unit.sample_maps:{name}")
    with pytest.raises(DataError, match=message):
        stream.read(0, global_batch_seqs=4)


def test_an_error_in_the_function_says_which_sample_it_was() -> None:
    stream = make_stream(make_store(one_row_documents(4)), sample_map="tests.unit.sample_maps:raise_value_error")
    with pytest.raises(
        DataError, match=r"raise_value_error raised ValueError: bad row 7 for sample \d .*sample_maps.py:\d+"
    ):
        stream.read(0, global_batch_seqs=4)


def test_a_function_that_is_not_there_is_blamed_on_its_own_setting() -> None:
    with pytest.raises(DataError, match=r"^data.sample_map: tests.unit.sample_maps:nothing"):
        make_stream(make_store(one_row_documents(4)), sample_map="tests.unit.sample_maps:nothing")
