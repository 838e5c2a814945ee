"""Packing and splitting: every prediction exactly once, every loss counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.memory_stream import make_store, make_stream
from trireme.data import plan_file
from trireme.data.pack import PackPlan, PackRules, build_plan, pack_window
from trireme.data.plan_file import find_plan, load_plan, save_plan
from trireme.data.split import split_documents
from trireme.errors import DataError

GOOD_EFFICIENCY_RATIO = 0.98
"""Best-fit decreasing over a full window wastes far less; a broken one falls to 0.8 and below."""

lengths_and_prompts = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 30)).map(lambda pair: (pair[0], min(pair))), min_size=1, max_size=40
)


def plan_of(documents: list[tuple[int, int]], **rules: Any) -> PackPlan:
    lengths = np.array([length for length, _ in documents], dtype=np.int64)
    prompts = np.array([prompt for _, prompt in documents], dtype=np.int32)
    return build_plan(lengths, prompt_lengths=prompts, documents=np.arange(len(lengths)), rules=PackRules(**rules))


def targets_of(plan: PackPlan, documents: list[tuple[int, int]]) -> Counter[tuple[int, int]]:
    """Return how often each (document, token) is learned."""
    learned: Counter[tuple[int, int]] = Counter()
    for document, start, length in zip(plan.documents, plan.starts, plan.lengths, strict=True):
        tokens = range(start + 1, start + length + 1)
        learned.update((int(document), token) for token in tokens if token >= documents[document][1])
    return learned


@given(documents=lengths_and_prompts, seq_len=st.integers(2, 24), packing=st.sampled_from(["isolate", "none"]))
@settings(max_examples=80, deadline=None)
def test_every_prediction_is_learned_exactly_once(documents: list[tuple[int, int]], seq_len: int, packing: str) -> None:
    plan = plan_of(documents, seq_len=seq_len, packing=packing)
    wanted = {
        (number, token)
        for number, (length, prompt) in enumerate(documents)
        for token in range(1, length)
        if token >= prompt
    }
    assert targets_of(plan, documents) == Counter(wanted)
    assert plan.counts.num_target_tokens == len(wanted)


@given(documents=lengths_and_prompts, seq_len=st.integers(2, 24), packing=st.sampled_from(["isolate", "none"]))
@settings(max_examples=50, deadline=None)
def test_no_row_overflows_and_every_row_has_something_to_learn(
    documents: list[tuple[int, int]], seq_len: int, packing: str
) -> None:
    plan = plan_of(documents, seq_len=seq_len, packing=packing)
    for row in range(plan.num_rows):
        segments = slice(plan.row_offsets[row], plan.row_offsets[row + 1])
        assert 0 < plan.lengths[segments].sum() <= seq_len
        for document, start, length in zip(
            plan.documents[segments], plan.starts[segments], plan.lengths[segments], strict=True
        ):
            assert start + length >= max(documents[document][1], 1)
        assert packing == "isolate" or segments.stop - segments.start == 1


@given(
    documents=lengths_and_prompts,
    seq_len=st.integers(2, 24),
    long_documents=st.sampled_from(["split", "truncate", "drop"]),
)
@settings(max_examples=60, deadline=None)
def test_documents_and_tokens_are_all_accounted_for(
    documents: list[tuple[int, int]], seq_len: int, long_documents: str
) -> None:
    plan = plan_of(documents, seq_len=seq_len, long_documents=long_documents)
    counts = plan.counts
    predictions = sum(max(length - 1, 0) for length, _ in documents)
    lost = counts.nothing_to_learn_tokens + counts.truncated_tokens + counts.dropped_tokens
    assert counts.num_real_tokens + lost + counts.prompt_pieces_tokens == predictions
    kept = len(set(plan.documents.tolist()))
    assert kept + counts.without_target + counts.dropped == len(documents)
    assert counts.without_target >= counts.nothing_to_learn


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=60))
@settings(max_examples=80, deadline=None)
def test_rows_are_those_of_the_textbook_best_fit_decreasing(lengths: list[int]) -> None:
    seq_len = 30
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms[rooms.index(min(fitting))] -= length
        else:
            rooms.append(seq_len - length)
    rows = pack_window(np.array(lengths), seq_len=seq_len)
    used = np.bincount(rows, weights=lengths)
    assert sorted(seq_len - used) == sorted(rooms)


def test_the_same_inputs_give_the_same_plan_and_another_seed_another() -> None:
    documents = [(length, 0) for length in np.random.default_rng(1).integers(2, 40, 300)]
    plans = [plan_of(documents, seq_len=32, seed=seed) for seed in (4, 4, 5)]
    assert (plans[0].documents == plans[1].documents).all()
    assert len(plans[0].documents) != len(plans[2].documents) or (plans[0].documents != plans[2].documents).any()


def test_windows_are_packed_well_and_mix_documents_from_everywhere() -> None:
    lengths = np.random.default_rng(0).lognormal(4, 0.8, 20_000).astype(np.int64) + 2
    plan = plan_of([(int(length), 0) for length in lengths], seq_len=512)
    assert plan.efficiency_ratio > GOOD_EFFICIENCY_RATIO
    first_rows = plan.documents[: plan.row_offsets[100]]
    assert np.ptp(first_rows) > len(lengths) // 2


def test_pieces_of_a_split_document_overlap_by_one_token() -> None:
    stream = make_stream(make_store([11]), seq_len=4)
    batch = stream.read(0, global_batch_seqs=3)
    pieces = sorted(zip(batch.input_ids.tolist(), batch.labels.tolist(), strict=True))
    assert pieces[0] == ([0, 1, 2, 3], [1, 2, 3, 4])
    assert pieces[1] == ([4, 5, 6, 7], [5, 6, 7, 8])
    assert pieces[2] == ([8, 9, 7, 7], [9, 10, -100, -100])


def test_long_documents_are_cut_off_or_left_out_with_their_tokens_counted() -> None:
    documents = [(20, 0), (5, 0)]
    truncated = plan_of(documents, seq_len=8, long_documents="truncate")
    assert (truncated.counts.truncated, truncated.counts.truncated_tokens) == (1, 11)
    dropped = plan_of(documents, seq_len=8, long_documents="drop")
    assert (dropped.counts.dropped, dropped.counts.dropped_tokens) == (1, 19)
    assert set(dropped.documents.tolist()) == {1}


def test_stop_names_the_first_long_document_and_its_length() -> None:
    with pytest.raises(DataError, match=r"document 2 has 30 tokens.*seq_len 8.*\(2 such documents\)"):
        plan_of([(5, 0), (30, 0), (40, 0)], seq_len=8, long_documents="stop")


def test_a_prompt_longer_than_a_row_gives_no_row_without_a_target() -> None:
    plan = plan_of([(20, 12)], seq_len=4)
    assert plan.counts.prompt_pieces == 2
    assert plan.counts.prompt_pieces_tokens == 8
    truncated = plan_of([(20, 12)], seq_len=4, long_documents="truncate")
    assert truncated.num_rows == 0
    assert truncated.counts.without_target == 1


def test_no_documents_give_an_empty_plan() -> None:
    assert plan_of([], seq_len=8).num_rows == 0
    assert plan_of([(1, 0), (0, 0), (5, 5)], seq_len=8).counts.nothing_to_learn == 3


def test_a_kept_plan_is_read_back_and_a_damaged_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_file, "_WORTH_A_FILE_S", 0.0)
    store = make_store([5, 9, 30, 2])
    kept = SimpleNamespace(**vars(store), folder=tmp_path, key="k")
    rules, documents = PackRules(seq_len=8), np.arange(4)
    first = find_plan(kept, documents=documents, rules=rules)
    assert first.folder is not None
    documents_before = first.documents.tolist()
    monkeypatch.setattr(plan_file, "build_plan", None)
    again = find_plan(kept, documents=documents, rules=rules)
    monkeypatch.undo()
    assert again.counts == first.counts
    assert again.documents.tolist() == documents_before
    path = first.folder / "documents.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x55")
    with pytest.raises(ValueError, match="documents"):
        load_plan(first.folder)
    assert find_plan(kept, documents=documents, rules=rules).documents.tolist() == documents_before


def test_saving_a_plan_twice_leaves_one_and_no_drafts(tmp_path: Path) -> None:
    plan = plan_of([(9, 0), (4, 0)], seq_len=8)
    for _ in range(2):
        save_plan(plan, folder=tmp_path / "plans" / "x")
    assert [path.name for path in (tmp_path / "plans").iterdir()] == ["x"]


def hold_out(hashes: list[int], fraction: float, learnable: list[bool] | None = None) -> list[bool]:
    values = np.array(hashes, dtype=np.uint64)
    mask = np.ones(len(hashes), dtype=bool) if learnable is None else np.array(learnable)
    return [bool(x) for x in split_documents([values], learnable=[mask], fraction=fraction).held_out[0]]


@given(hashes=st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=50, unique=True), fraction=st.floats(0.001, 0.9))
@settings(max_examples=60, deadline=None)
def test_the_split_follows_content_whatever_the_order_and_leaves_both_sides_something(
    hashes: list[int], fraction: float
) -> None:
    forward = hold_out(hashes, fraction)
    assert forward == hold_out(hashes[::-1], fraction)[::-1]
    assert any(forward)
    assert not all(forward)


def test_the_split_rule_is_hash_below_fraction() -> None:
    quarter = 2**62
    assert hold_out([quarter - 1, quarter, quarter + 1, 0], 0.25) == [True, False, False, True]


def test_two_copies_of_a_text_stay_on_one_side_and_one_text_stays_in_training() -> None:
    assert hold_out([5, 5, 9], 0.001) == [True, True, False]
    assert hold_out([5, 5], 0.5) == [False, False]
    assert hold_out([5, 6], 0.0) == [False, False]


def test_a_document_with_nothing_to_learn_is_not_what_evaluation_gets() -> None:
    assert hold_out([1, 5, 9], 1e-15, learnable=[False, True, True]) == [True, True, False]
