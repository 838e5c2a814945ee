"""``trireme data``: lines a program can read, messages a person can act on."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path

import pytest

from trireme.cli import main

IDS_LINE = re.compile(r"^\d+ \d+:( \d+)*$")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run file over 90 short lines; its cache is shared by the tests here."""
    folder = tmp_path_factory.mktemp("data_verbs")
    lines = [f"明月几时有，把酒问青天，第{number}首。" for number in range(90)]
    (folder / "poems.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "run.yaml").write_text(
        f"data:\n  sources: [{{path: {folder}/poems.txt, txt_document: line}}]\n"
        f"  seq_len: 16\n  tokenizer_vocab_size: 320\n  cache_dir: {folder}/cache\n"
        "train: {max_steps: 50, global_batch_seqs: 7}\nmodel: {name: llama-1m}\n",
        encoding="utf-8",
    )
    return folder


def run(folder: Path, *words: str) -> int:
    return main(["data", words[0], str(folder / "run.yaml"), *words[1:]])


@pytest.mark.parametrize("degree", [1, 2, 3, 8])
def test_dat_02_ids_prints_the_same_samples_for_any_number_of_ranks(
    folder: Path, degree: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "ids", "--steps", "0:50", "--dp-degree", "1") == 0
    alone = [line.split(":")[1].split() for line in capsys.readouterr().out.splitlines()]
    assert run(folder, "ids", "--steps", "0:50", "--dp-degree", str(degree)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(IDS_LINE.match(line) for line in lines)
    assert [line.split(":")[0] for line in lines] == [f"{step} {rank}" for step in range(50) for rank in range(degree)]
    parts = [line.split(":")[1].split() for line in lines]
    assert [list(chain(*parts[at : at + degree])) for at in range(0, len(parts), degree)] == alone


def test_ids_start_where_asked_and_leave_notices_to_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "ids", "--steps", "0:9") == 0
    whole = capsys.readouterr().out.splitlines()
    assert run(folder, "ids", "--steps", "4:9") == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines() == whole[4:]


def test_ids_follow_overrides(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "ids", "train.global_batch_seqs=2", "--steps", "0:1", "run.seed=5") == 0
    assert len(capsys.readouterr().out.split()) == 4


@pytest.mark.parametrize("steps", ["5", "5:3", "3:3", "-1:4", "a:b", "1:2:3", ""])
def test_a_range_that_is_none_is_refused_with_an_example(
    folder: Path, steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "ids", f"--steps={steps}") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "0:50" in captured.err or "--steps" in captured.err


def test_report_tells_documents_samples_and_epochs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "report") == 0
    text = capsys.readouterr().out
    assert "poems.txt" in text
    assert "epochs" in text
    assert "⟦" in text


def test_report_as_json_is_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "report", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["sources"][0]["num_documents"] == 90
    assert values["num_steps"] == 50


def test_dat_13_report_shows_the_tokens_of_a_sample(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "report", "--example", "2") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(row[-1:] == ["no"] for row in rows) >= 1
    assert sum(row[-1:] == ["yes"] for row in rows) >= 10
    assert run(folder, "report", "--example", "100000") == 2
    assert "samples are 0 to" in capsys.readouterr().err


def test_build_says_where_the_tokens_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "build") == 0
    line = capsys.readouterr().out
    assert "90 documents" in line
    assert Path(line.split(" in ")[1].strip()).is_dir()


def test_tokenizer_is_trained_measured_and_never_overwritten(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("明月\n青天\n", encoding="utf-8")
    output = tmp_path / "tokenizer"
    source = f"{folder}/poems.txt"
    command = ["data", "tokenizer", "--source", source, "--vocab-size", "330", "--output", str(output)]
    assert main([*command, "--words", str(words)]) == 0
    captured = capsys.readouterr()
    text = captured.out
    vocabulary = json.loads((output / "tokenizer.json").read_text(encoding="utf-8"))
    assert "明月" in str(vocabulary)
    assert re.search(r"vocabulary \d\d\d\n", text)
    assert "has no more pieces to learn" in captured.err
    assert "characters and" in text
    assert "comes back exactly" in text
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err


def test_tokenizer_needs_exactly_one_origin_of_text(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "tokenizer", "--output", str(tmp_path / "t")]) == 2
    assert "--source" in capsys.readouterr().err
    both = ["data", "tokenizer", str(folder / "run.yaml"), "--source", "x", "--output", str(tmp_path / "t")]
    assert main(both) == 2
    assert "both given" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["99999999999999999999:100000000000000000000", "0:9223372036854775807"])
def test_steps_beyond_any_run_are_refused(folder: Path, capsys: pytest.CaptureFixture[str], steps: str) -> None:
    assert run(folder, "ids", "--steps", steps) == 2
    assert "goes beyond 2^63 samples" in capsys.readouterr().err
