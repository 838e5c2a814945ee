"""``trireme checkpoint``: every verb on a real run, in words and in JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.tiny_run import make_run
from trireme.cli import main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", evals={10: 2.0, 20: 1.5, 30: 1.7})


def type_in(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(word) for word in words])
    return (code, *capsys.readouterr())


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_list_names_what_is_damaged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.truncate(run / "checkpoints" / "step-20" / "shard-00000.safetensors", 100)
    code, output, _ = type_in(capsys, "checkpoint", "ls", run)
    assert code == 0
    lines = output.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["10", "20", "30"]
    assert "good" in lines[1]
    assert "100 bytes" in lines[2]
    _, output, _ = type_in(capsys, "checkpoint", "ls", run, "--json")
    assert [(each["step"], each["good"]) for each in json.loads(output)] == [(10, True), (20, False), (30, True)]


def test_show_and_verify_take_a_run_or_a_checkpoint(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = type_in(capsys, "checkpoint", "show", run, "--tensors")
    assert code == 0
    assert "step-30" in output
    assert "model/embed_tokens.weight" in output
    shown = json.loads(type_in(capsys, "checkpoint", "show", run / "checkpoints" / "step-10", "--json")[1])
    assert (shown["step"], shown["metrics"]) == (10, {"eval_loss": 2.0})
    assert type_in(capsys, "checkpoint", "verify", run)[0] == 0
    flip(run / "checkpoints" / "step-20" / "shard-00000.safetensors")
    code, output, _ = type_in(capsys, "checkpoint", "verify", run)
    assert code == 2
    assert "damaged in tensor" in output
    code, output, _ = type_in(capsys, "checkpoint", "verify", run / "checkpoints" / "step-20", "--json")
    assert code == 2
    assert "damaged" in next(iter(json.loads(output)["checkpoints"].values()))


def test_a_comparison_names_values_and_state(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (run / "checkpoints" / f"step-{step}" for step in (10, 20))
    code, output, _ = type_in(capsys, "checkpoint", "diff", one, other)
    assert code == 2
    assert "model/embed_tokens.weight: differs by up to" in output
    assert "progress" in output
    code, output, _ = type_in(capsys, "checkpoint", "diff", one, one, "--json")
    assert code == 0
    assert not any(json.loads(output).values())


def test_weights_go_to_a_hugging_face_folder_and_come_back(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CKP-27, CKP-32: shapes are checked against the model, and what comes back is told to be weights only."""
    folder = run.parent / "exported"
    code, output, errors = type_in(capsys, "checkpoint", "convert", run, folder)
    assert code == 0, errors
    assert "step 30" in output
    code, output, errors = type_in(capsys, "checkpoint", "convert", folder, run.parent / "back")
    assert code == 0, errors
    code, output, _ = type_in(
        capsys, "checkpoint", "diff", run.parent / "back" / "step-0", run / "checkpoints" / "step-30", "--json"
    )
    found = json.loads(output)
    assert (found["only_one"], found["forms"], found["values"]) == ([], {}, {})
    assert all(name.startswith("optimizer/") for name in found["only_other"])
    code, _, errors = type_in(capsys, "checkpoint", "convert", run, folder)
    assert code == 2
    assert "Traceback" not in errors


def test_pruning_can_be_tried_first_and_keeps_the_best(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["checkpoint", "prune", run, "--keep-last", "1"]
    code, output, _ = type_in(capsys, *words, "--dry-run")
    assert code == 0
    assert "step-10 would be deleted" in output
    assert (run / "checkpoints" / "step-10").exists()
    type_in(capsys, *words, "--json")
    assert sorted(each.name for each in (run / "checkpoints").iterdir()) == ["step-20", "step-30"]


@pytest.mark.parametrize("lost", ["manifest.json", "manifest.copy.json"])
def test_a_lost_manifest_is_written_anew_from_the_other(
    run: Path, capsys: pytest.CaptureFixture[str], lost: str
) -> None:
    checkpoint = run / "checkpoints" / "step-30"
    whole = (checkpoint / lost).read_bytes()
    flip(checkpoint / lost)
    code, output, _ = type_in(capsys, "checkpoint", "repair", checkpoint)
    assert code == 0
    assert lost in output
    assert (checkpoint / lost).read_bytes() == whole
    repaired = json.loads(type_in(capsys, "checkpoint", "repair", run, "--json")[1])["repaired"]
    assert list(repaired.values()) == [None, None, None]


def test_a_folder_without_checkpoints_is_told_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = type_in(capsys, "checkpoint", "ls", tmp_path)
    assert code == 2
    assert "holds no checkpoints" in errors
