"""The data report: true numbers, every loss named, a sample that shows what is learned."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.unit.memory_stream import make_store, make_stream
from trireme.data.example import build_example
from trireme.data.pack import PackCounts
from trireme.data.report import DataReport, HeldOutReport, SourceReport
from trireme.data.report_view import format_example, format_report, show_controls

ESCAPE = "\x1b["


class Letters:
    """A tokenizer whose token n is the n-th letter; token 0 is the begin mark."""

    def token_text(self, token_id: int) -> str:
        return "<s>" if token_id == 0 else chr(ord("a") + token_id - 1)

    def decode(self, ids: Any, *, skip_special: bool = True) -> str:
        return "".join(self.token_text(i) for i in ids)


def letter_stream(**rules: Any) -> Any:
    """Two documents, <s>abcde with a prompt of three tokens and <s>ab, in one row of ten."""
    store = make_store([6, 3], prompt_lengths=[3, 0])
    store.shards = (np.array([0, 1, 2, 3, 4, 5, 0, 1, 2], dtype=np.uint16),)
    return make_stream(store, seq_len=10, **rules)


@pytest.fixture
def report() -> DataReport:
    packed = PackCounts(
        num_documents=90,
        num_rows=10,
        num_real_tokens=90,
        num_target_tokens=45,
        nothing_to_learn=2,
        without_target=2,
        truncated=3,
        truncated_tokens=77,
    )
    source = SourceReport(
        name="poems.jsonl",
        weight=None,
        share=1.0,
        num_records=105,
        num_documents=100,
        num_characters=400,
        num_tokens=200,
        not_read=dict(Counter(not_json=4, drop_empty=1)),
        first_not_read={"not_json": "poems.jsonl:17"},
        num_held_out=10,
        packed=packed,
    )
    return DataReport(
        seq_len=10,
        vocab_size=99,
        tokenizer="tokenizer.json",
        tokenizer_fingerprint="f",
        stream_fingerprint="s",
        sources=(source,),
        held_out=HeldOutReport(num_documents=10, num_also_trained=1, packed=replace(packed, num_rows=3)),
        notices=(),
        example=build_example(letter_stream(), 0, tokenizer=Letters()),
    )


def test_ratios_follow_from_the_counts(report: DataReport) -> None:
    assert report.efficiency_ratio == 0.9
    assert report.target_ratio == 0.5
    assert report.characters_per_token == 2.0


def test_every_loss_is_told_with_its_reason_and_the_first_place(report: DataReport) -> None:
    text = format_report(report, width=200)
    assert "poems.jsonl: 4 records left out: no valid JSON (first: poems.jsonl:17)." in text
    assert "poems.jsonl: 1 records left out: empty text" in text
    assert "3 documents longer than a sample were cut off; 77 tokens lost" in text
    assert "2 documents left out: no token to learn" in text
    assert "1 of the 10 evaluation documents also stand among the training documents" in text
    assert "90.0% filled; 50.0% of the tokens are learned" in text
    left_out = next(line for line in text.splitlines() if line.startswith("poems.jsonl ")).split()
    assert left_out[4] == "7"


def test_dat_06_samples_and_epochs_of_each_source_are_shown_for_a_run(report: DataReport) -> None:
    run = report.for_run([25.0], num_steps=5, global_batch_seqs=5)
    assert run.sources[0].epochs == 2.5
    text = format_report(run, width=200)
    assert "epochs" in text
    assert "2.50" in text
    assert "epochs" not in format_report(report, width=200)


def test_the_report_is_plain_json(report: DataReport) -> None:
    values = json.loads(json.dumps(report.to_json()))
    assert values["efficiency_ratio"] == 0.9
    assert values["sources"][0]["characters_per_token"] == 2.0
    assert values["sources"][0]["not_read"] == {"not_json": 4, "drop_empty": 1}
    assert values["example"]["pieces"][0]["tokens"][0]["text"] == "<s>"


def test_the_report_speaks_chinese(report: DataReport, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIREME_LANG", "zh")
    text = format_report(report, width=200)
    assert "填充率 90.0%" in text
    assert "JSON 不合法" in text


def test_dat_13_the_preview_has_each_token_with_learned_yes_or_no() -> None:
    example = build_example(letter_stream(), 0, tokenizer=Letters())
    marks = [[(token.text, token.learned) for token in piece.tokens] for piece in example.pieces]
    assert marks == [
        [("<s>", False), ("a", False), ("b", False), ("c", True), ("d", True), ("e", True)],
        [("<s>", False), ("a", True), ("b", True)],
    ]
    assert example.num_padding == 3
    text = format_example(example, width=100)
    assert "<s>ab⟦cde⟧" in text
    assert "<s>⟦ab⟧" in text
    rows = [line.split() for line in text.splitlines() if line.split()[-1:] in (["yes"], ["no"])]
    assert rows[0] == ["0", "0", "0", "<s>", "no"]
    assert rows[5] == ["0", "5", "5", "e", "yes"]
    assert len(rows) == 9


def test_colours_stand_for_the_marks_on_a_terminal(report: DataReport) -> None:
    colored, plain = format_report(report, color=True), format_report(report, color=False)
    assert ESCAPE in colored
    assert "⟦cde⟧" not in colored
    assert "green is learned" in colored
    assert ESCAPE not in plain


def test_a_document_cannot_steer_the_terminal(report: DataReport) -> None:
    assert show_controls("a\x1b[31mb\r\n\tc\x07") == "a\\x1b[31mb\\x0d\n\tc\\x07"
    steering = SimpleNamespace(decode=lambda ids, skip_special: "\x1b]0;x\x07", token_text=lambda _: "\x1b[2J")
    example = build_example(letter_stream(), 0, tokenizer=steering)
    assert "\x1b" not in format_example(example)


def test_text_in_brackets_is_shown_as_it_is() -> None:
    odd = SimpleNamespace(decode=lambda ids, skip_special: "[bold]x[/bold] :smile:", token_text=lambda _: "[red]")
    text = format_example(build_example(letter_stream(), 0, tokenizer=odd))
    assert "[bold]x[/bold] :smile:" in text
    assert "[red]" in text


def test_a_long_document_is_cut_in_the_report_and_whole_in_the_preview() -> None:
    store = make_store([1001])
    store.shards = (np.ones(1001, dtype=np.uint16),)
    example = build_example(make_stream(store, seq_len=1000), 0, tokenizer=Letters())
    assert "a" * 1000 in format_example(example, width=5000)
    report = DataReport(
        seq_len=1000,
        vocab_size=9,
        tokenizer="t",
        tokenizer_fingerprint="f",
        stream_fingerprint="s",
        sources=(),
        held_out=None,
        notices=(),
        example=example,
    )
    packed = PackCounts(num_rows=1, num_real_tokens=1000, num_target_tokens=1000)
    source = SourceReport(
        name="x",
        weight=None,
        share=1.0,
        num_records=1,
        num_documents=1,
        num_characters=1001,
        num_tokens=1001,
        not_read={},
        first_not_read={},
        num_held_out=0,
        packed=packed,
    )
    text = format_report(replace(report, sources=(source,)), width=5000)
    assert "a…⟧" in text
    assert "a" * 300 not in text
    assert "Nothing is held out" in text
