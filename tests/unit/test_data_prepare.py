"""From settings to samples: what is held out, what stops a run before it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trireme.config import DataSection, SourceSection
from trireme.data.loader import Loader
from trireme.data.prepare import PreparedData, prepare_data
from trireme.data.tokenizer import Tokenizer
from trireme.data.tokenizer_train import train_tokenizer
from trireme.errors import CheckpointError, DataError

LINES = [f"第{number}首：明月几时有，把酒问青天。The quick brown fox number {number}." for number in range(60)]

Prepare = Callable[..., PreparedData]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Path]:
    folder = tmp_path_factory.mktemp("tokenizer")
    trained = train_tokenizer(LINES, vocab_size=400)
    trained.save(folder)
    return trained, folder


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: tuple[Tokenizer, Path]) -> Prepare:
    """Prepare given records (a list a source) with given settings."""
    monkeypatch.setenv("TRIREME_CACHE", str(tmp_path / "cache"))

    def run(
        *sources: list[Any], seed: int = 1, notice: Any = None, weights: Any = None, **settings: Any
    ) -> PreparedData:
        sections = tuple(
            SourceSection(
                path=str(write_jsonl(tmp_path / f"source{number}.jsonl", records)),
                prompt_field="prompt" if isinstance(records[0], dict) and "prompt" in records[0] else None,
                weight=weights[number] if weights else None,
            )
            for number, records in enumerate(sources)
        )
        settings = {"tokenizer": str(tokenizer[1]), "seq_len": 64} | settings
        options = {} if notice is None else {"notice": notice}
        return prepare_data(DataSection(sources=sections, **settings), seed=seed, **options)

    return run


def write_jsonl(path: Path, records: list[Any]) -> Path:
    lines = [json.dumps(r if isinstance(r, dict) else {"text": r}, ensure_ascii=False) for r in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def texts_of(prepared: PreparedData, stream: Any) -> list[str]:
    batches = stream.eval_batches(batch_seqs=16)
    ids = [
        row[docs == d]
        for b in batches
        for row, docs in zip(b.input_ids, b.document_ids, strict=True)
        for d in set(docs) - {-1}
    ]
    return [prepared.tokenizer.decode(part.tolist()) for part in ids]


def test_every_document_is_either_trained_or_held_out(prepare: Prepare) -> None:
    prepared = prepare(LINES, eval_fraction=0.2)
    assert prepared.evaluation is not None
    trained, held_out = (set(texts_of(prepared, s)) for s in (prepared.train, prepared.evaluation))
    assert not trained & held_out
    assert len(trained) + len(held_out) == len(LINES)
    assert prepared.report.held_out is not None
    assert prepared.report.held_out.num_documents == len(held_out)
    assert 2 <= len(held_out) <= 30


def test_what_is_held_out_follows_neither_seed_nor_order(prepare: Prepare) -> None:
    first = prepare(LINES, eval_fraction=0.2, seed=1)
    second = prepare(LINES[::-1], eval_fraction=0.2, seed=2)
    assert sorted(texts_of(first, first.evaluation)) == sorted(texts_of(second, second.evaluation))


def test_evaluation_is_the_same_for_any_seed_and_training_is_not(prepare: Prepare) -> None:
    first, second = (prepare(LINES, eval_fraction=0.3, seed=seed) for seed in (1, 2))
    assert first.evaluation is not None
    assert second.evaluation is not None
    assert first.evaluation.fingerprint == second.evaluation.fingerprint
    assert first.train.fingerprint != second.train.fingerprint


def test_a_corpus_of_two_texts_still_gets_an_evaluation(prepare: Prepare) -> None:
    prepared = prepare(LINES[:2], eval_fraction=0.01)
    assert prepared.evaluation is not None
    assert prepared.evaluation.num_samples == prepared.train.num_samples == 1


def test_one_text_is_trained_on_and_a_notice_says_that_nothing_is_held_out(prepare: Prepare) -> None:
    notices: list[str] = []
    prepared = prepare(LINES[:1], eval_fraction=0.5, notice=notices.append)
    assert prepared.evaluation is None
    assert any("only one text" in notice for notice in notices)
    assert prepared.report.notices == tuple(notices)


def test_eval_sources_replace_the_fraction_and_copies_are_counted(prepare: Prepare, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "held_out.jsonl", [LINES[3], "another text altogether", "and one more"])
    prepared = prepare(LINES, eval_fraction=0.5, eval_sources=(SourceSection(path=str(path)),))
    assert prepared.report.held_out is not None
    assert prepared.report.held_out.num_documents == 3
    assert prepared.report.held_out.num_also_trained == 1
    assert prepared.report.sources[0].num_held_out == 0


def test_no_sources_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.sources is empty"):
        prepare_data(DataSection(), seed=1)


def test_dat_12_zero_trained_tokens_stop_the_run_before_it_starts(prepare: Prepare) -> None:
    """All text is prompt-free but one token long: nothing could be learned."""
    with pytest.raises(DataError, match="token to learn"):
        prepare([""" """, "a"], add_bos=False, add_eos=False, max_empty_target_ratio=1.0)


def test_dat_14_documents_without_a_learned_token_are_counted_and_one_is_shown(prepare: Prepare) -> None:
    """A wrong field split: the answer is empty, the question fills the prompt."""
    answered = [{"prompt": "问：", "text": line} for line in LINES[:40]]
    cut_away = [{"prompt": "问" * 80 + "谁是李白？", "text": "诗人"} for _ in range(20)]
    with pytest.raises(DataError, match=r"20 of 60 documents have no token to learn.*0\.1 allows") as caught:
        prepare(answered + cut_away, long_documents="truncate", eval_fraction=0.0)
    assert "问问问" in str(caught.value)
    prepared = prepare(answered + cut_away, long_documents="truncate", eval_fraction=0.0, max_empty_target_ratio=0.5)
    assert prepared.report.packed.without_target == 20


def test_prompts_are_read_and_not_learned(prepare: Prepare) -> None:
    prepared = prepare([{"prompt": "问：明月几时有？", "text": "答：把酒问青天。"}], eval_fraction=0.0)
    batch = prepared.train.read(0, global_batch_seqs=1)
    learned = batch.labels[batch.labels != -100].tolist()
    assert prepared.tokenizer.decode(learned) == "答：把酒问青天。"
    assert "问：明月" in prepared.tokenizer.decode(batch.input_ids[0].tolist())


def test_stop_on_long_documents_names_source_and_document(prepare: Prepare) -> None:
    with pytest.raises(DataError, match=r"source0.jsonl: document \d+ has \d+ tokens.*seq_len 16"):
        prepare(LINES, seq_len=16, long_documents="stop")


def test_weights_reach_the_stream_and_rounding_is_said(prepare: Prepare) -> None:
    notices: list[str] = []
    prepared = prepare(LINES[:30], LINES[30:], weights=(0.7123456, 1e-7), notice=notices.append)
    assert any("65536" in notice for notice in notices)
    assert prepared.train.sources[0].weight == 0.7123456
    report = prepared.report_for_run(num_steps=10, global_batch_seqs=4)
    assert [source.num_drawn for source in report.sources] in ([40.0, 0.0], [39.0, 1.0])


def test_resuming_with_another_tokenizer_or_text_is_refused_by_name(prepare: Prepare, tmp_path: Path) -> None:
    state = prepare(LINES).train.state(4, global_batch_seqs=8)
    prepare(LINES).train.check_state(json.loads(json.dumps(state)))
    other = tmp_path / "other"
    train_tokenizer(LINES, vocab_size=350).save(other)
    with pytest.raises(CheckpointError, match="another tokenizer"):
        prepare(LINES, tokenizer=str(other)).train.check_state(state)
    with pytest.raises(CheckpointError, match=r"data\.sources\.0 has other documents"):
        prepare([*LINES, "one more line of text"]).train.check_state(state)
    with pytest.raises(CheckpointError, match="add_bos"):
        prepare(LINES, add_bos=False).train.check_state(state)


def test_dat_01_worker_processes_read_stores_from_disk_like_the_trainer(prepare: Prepare) -> None:
    stream = prepare(LINES, LINES[::-1], eval_fraction=0.0).train
    with Loader(stream, global_batch_seqs=4, last_step=6, workers=2) as loader:
        for batch in loader:
            assert (batch.input_ids == stream.read(batch.step, global_batch_seqs=4).input_ids).all()


def test_dat_13_each_document_begins_with_exactly_one_begin_token(prepare: Prepare) -> None:
    """Also where the text itself starts with it, written out."""
    begin = "<|begin|>"
    prepared = prepare([begin + LINES[0], LINES[1]], parse_special=True, eval_fraction=0.0)
    bos_id = prepared.tokenizer.bos_id
    batch = prepared.train.read(0, global_batch_seqs=prepared.train.num_samples)
    starts = batch.input_ids[(batch.position_ids == 0) & (batch.document_ids >= 0)]
    assert (starts == bos_id).all()
    assert (batch.input_ids == bos_id).sum() == len(starts)


def test_a_warm_cache_gives_the_same_samples(prepare: Prepare) -> None:
    cold, warm = prepare(LINES), prepare(LINES)
    assert cold.train.fingerprint == warm.train.fingerprint
    batches = [prepared.train.read(3, global_batch_seqs=8) for prepared in (cold, warm)]
    assert np.array_equal(batches[0].input_ids, batches[1].input_ids)


def test_reading_data_never_loads_torch(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", LINES)
    code = (
        "import sys\n"
        "from trireme.config import DataSection, SourceSection\n"
        "from trireme.data import Loader, format_report, prepare_data\n"
        f"data = DataSection(sources=(SourceSection(path={str(path)!r}),), seq_len=32, tokenizer_vocab_size=300)\n"
        "prepared = prepare_data(data, seed=1)\n"
        "format_report(prepared.report)\n"
        "next(Loader(prepared.train, global_batch_seqs=2))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    environment = {"TRIREME_CACHE": str(tmp_path / "cache"), "PATH": "", "HOME": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def test_samples_that_the_machine_has_no_room_for_are_refused(prepare: Prepare) -> None:
    with pytest.raises(DataError, match=r"data.seq_len = 1000000000000 makes samples of .* this machine has"):
        prepare(seq_len=10**12)
