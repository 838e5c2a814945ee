"""``trireme plan`` as a person meets it: a table, memory, reasons, plan.json, mistakes in one line, and no torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from trireme.cli import main
from trireme.plan import parse_plan

LARGE = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 50304,
    "n_embd": 12288,
    "n_layer": 96,
    "n_head": 96,
    "n_positions": 2048,
}
SMALL = ["llama-125m", "--cluster", "h100:4", "--global-batch-seqs", "64", "--seq-len", "1024", "--fix", "cp=1"]


@pytest.fixture(autouse=True)
def _language_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIREME_LANG", "en")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = main(["plan", *words])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_plan_shows_layouts_memory_time_placement_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *SMALL, "--tokens", "10B", "--node-mtbf-hours", "1000", "--why", "tp=4")
    assert status == 0
    for words in ("80 % within", "Memory by pipeline rank", "Placement", "Left out", "days", "goodput", "tp=4: "):
        assert words in out


def test_the_articles_large_model_on_512_gpus(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = tmp_path / "large.json"
    config.write_text(json.dumps(LARGE))
    size = ["--cluster", "a100-80gb:8x64", "--global-batch-seqs", "512", "--seq-len", "2048"]
    fix = ["--fix", "dp=8,mp=4,pp=16", "--fix", "schedule=1f1b,micro=64"]
    status, out, err = run(capsys, str(config), *size, *fix, "--top", "1")
    assert status == 0
    assert "tp 4 x pp 16 = 64 parts, each there 8 times" in out
    assert "m/(m+p-1) = 64/(64+16-1) = 81.0%" in out
    assert "mp = 4 is read as tp = 4" in err


def test_json_holds_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, *SMALL, "--json", "--top", "2", "--why", "tp=3")
    found = json.loads(out)
    assert status == 0
    assert len(found["plans"]) == 2
    best = found["plans"][0]
    assert best["step_s_low"] < best["step_s"] < best["step_s_high"]
    assert best["memory"][0]["device_bytes"] <= best["capacity_bytes"]
    assert found["why"][0]["verdict"] == "illegal"


def test_plan_json_is_written_and_the_same_each_time(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    texts = []
    for name in ("a.json", "b.json"):
        assert run(capsys, *SMALL, "--out", str(tmp_path / name))[0] == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert parse_plan(texts[0]).model == "llama-125m"


def test_the_pipeline_is_drawn_with_every_action_in_its_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "pipeline.svg"
    fix = ["--fix", "pp=4,schedule=1f1b,micro=8", "--top", "1", "--timeline", str(picture)]
    status, out, _ = run(capsys, *SMALL, *fix)
    assert status == 0
    assert f"written to {picture}" in out
    boxes = [each for each in ElementTree.parse(picture).iter() if each.get("class") in ("F", "B")]
    assert [sum(each.get("class") == kind for each in boxes) for kind in "FB"] == [4 * 8, 4 * 8]
    rows: dict[str, list[tuple[float, float]]] = {}
    for each in boxes:
        rows.setdefault(each.attrib["y"], []).append((float(each.attrib["x"]), float(each.attrib["width"])))
    assert len(rows) == 4
    for row in rows.values():
        assert all(x + wide <= after + 0.02 for (x, wide), (after, _) in pairwise(row)), (
            "a rank does one thing at a time"
        )
    busy = sum(wide for row in rows.values() for _, wide in row) / (4 * 1400)
    assert busy == pytest.approx(
        1 - float(re.findall(r"([0-9.]+)% of the ranks", picture.read_text())[0]) / 100, abs=2e-3
    )
    first = next(each for each in boxes if each.get("class") == "F")
    assert next(iter(first)).text.startswith("forward, stage 0, micro-batch 0: ")


def test_a_run_file_gives_model_batch_and_length(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "model: llama-19m\ndata: {sources: [a.txt], seq_len: 256}\ntrain: {max_steps: 10, global_batch_seqs: 32}\n"
    )
    status, out, _ = run(capsys, str(file), "--cluster", "4090:2", "--top", "1")
    assert status == 0
    assert "32 sequences of 256 tokens" in out


def test_the_fewest_accelerators_are_named_with_what_stands_against_fewer(capsys: pytest.CaptureFixture[str]) -> None:
    size = ["--cluster", "a100-40gb:8", "--global-batch-seqs", "64", "--seq-len", "2048", "--fix", "cp=1"]
    status, out, _ = run(capsys, "llama-3-8b", *size, "--fit", "--framework", "megatron-lm")
    assert status == 0
    assert "fewest: " in out
    assert "with fewer: " in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gpt2", "--cluster", "h101:8", "--global-batch-seqs", "8", "--seq-len", "128"], "h100"),
        (["gpt-2x", "--cluster", "h100:8", "--global-batch-seqs", "8", "--seq-len", "128"], "gpt2"),
        (["gpt2", "--cluster", "h100:8", "--seq-len", "128"], "--global-batch-seqs"),
        ([*SMALL, "--fix", "tp=3"], "tp=2"),
        ([*SMALL, "--framework", "megatrom"], "megatron-lm"),
        ([*SMALL, "--tokens", "many"], "15T"),
        (["llama-3-70b", "--cluster", "4090:1", "--global-batch-seqs", "8", "--seq-len", "128"], "offered"),
        (["gpt3-175b", "--cluster", "h100:8x184", "--global-batch-seqs", "32", "--seq-len", "2048", "--fix", "tp=8,pp=8,cp=1"], "23 / 46"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_that_says_what_works(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    status, _, err = run(capsys, *words)
    assert status == 2
    assert said in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_a_config_of_a_family_that_nobody_knows_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "never-heard-of"}))
    status, _, err = run(capsys, str(config), "--cluster", "h100:8", "--global-batch-seqs", "8", "--seq-len", "128")
    assert status == 2
    assert "can't be captured" in err
    assert len(err.strip().splitlines()) == 1


def test_chinese_is_spoken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIREME_LANG", "zh")
    status, out, _ = run(capsys, *SMALL, "--top", "1")
    assert status == 0
    assert "布局" in out


def test_planning_imports_no_torch() -> None:
    code = (
        "import sys; from trireme.cli import main; "
        f"status = main(['plan', *{SMALL!r}]); assert not status; "
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules and 'pydantic' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr


def test_code_and_configs_of_unknown_families_are_planned_and_said_to_be_captured(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    sizes = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
    config.write_text(json.dumps({"model_type": "stablelm", "intermediate_size": 256, "vocab_size": 512, **sizes}))
    size = ["--cluster", "h100:2", "--global-batch-seqs", "8", "--seq-len", "64", "--top", "1"]
    out_path = tmp_path / "plan.json"
    status, _, err = run(capsys, str(config), *size, "--fix", "pp=2,mbs=1", "--out", str(out_path))
    assert status == 0, err
    assert "stablelm" in err
    assert parse_plan(out_path.read_text()).cuts in (("model.layers.1",), ("model.layers.2",))
    status, _, err = run(capsys, f"{tmp_path}/nothing.py:build", *size)
    assert status == 2
    assert len(err.strip().splitlines()) == 1
