"""``trireme train --nproc-per-node``: the same run on many ranks, and on another layout after a stop."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.train_command import SETTINGS, TEXT

SAME = 2e-5
"""fp32 over ten steps, relative: sums in another order, which AdamW makes larger."""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("trireme")
    return subprocess.run([str(program), *words], cwd=folder, capture_output=True, text=True, timeout=240)


def make_folder(path: Path) -> Path:
    settings: dict[str, Any] = {**SETTINGS, "train": {**SETTINGS["train"], "schedule": "constant", "warmup_steps": 0}}
    settings["train"] |= {"global_batch_seqs": 5, "microbatch_seqs": None, "max_steps": 4}
    (path / "text.txt").write_text(TEXT, encoding="utf-8")
    (path / "run.yaml").write_text(json.dumps(settings), encoding="utf-8")
    return path


def losses(log: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in log.read_text().splitlines()]


def test_a_run_goes_from_layout_to_layout_and_keeps_its_losses(tmp_path: Path) -> None:
    """CKP, RES: five samples a step on three data-parallel ranks, then a pipeline, then one process."""
    folder = make_folder(tmp_path)
    alone = run(folder, "train", "run.yaml", "run.dir=alone", "train.max_steps=8")
    assert alone.returncode == 0, alone.stderr
    words = ["train", "run.yaml", "run.dir=moving"]
    stops = [
        [*words, "--nproc-per-node", "3", "layout.zero=2"],
        [*words, "--resume", "--extend", "hold", "train.max_steps=6", "--nproc-per-node", "4", "layout=tp=2,pp=2"],
        [*words, "--resume", "--extend", "hold", "train.max_steps=8"],
    ]
    for command in stops:
        done = run(folder, *command)
        assert done.returncode == 0, done.stderr + done.stdout
        assert done.stdout.count("Next") == 1, "one rank speaks"
    expected = losses(folder / "alone" / "log.jsonl")
    assert losses(folder / "moving" / "log.jsonl") == pytest.approx(expected, rel=SAME)
    alone_eval, moving_eval = (
        (folder / name / "evals.jsonl").read_text().splitlines()[-1] for name in ("alone", "moving")
    )
    assert json.loads(moving_eval)["eval_loss"] == pytest.approx(json.loads(alone_eval)["eval_loss"], rel=SAME)


def test_a_run_begun_on_a_pipeline_ends_on_one_device_as_if_it_had_never_left_it(tmp_path: Path) -> None:
    """Twenty steps, RES: tp2 pp2, then four data-parallel ranks under ZeRO-3, then one device; told at each start."""
    folder = make_folder(tmp_path)
    text = (folder / "run.yaml").read_text().replace('"global_batch_seqs": 5', '"global_batch_seqs": 4')
    (folder / "run.yaml").write_text(text)
    alone = run(folder, "train", "run.yaml", "run.dir=alone", "train.max_steps=20")
    assert alone.returncode == 0, alone.stderr
    words = ["train", "run.yaml", "run.dir=moving"]
    more = [*words, "--resume", "--extend", "hold"]
    first = run(folder, *words, "train.max_steps=7", "--nproc-per-node", "4", "layout=tp=2,pp=2")
    second = run(folder, *more, "train.max_steps=14", "--nproc-per-node", "4", "layout=dp=4,zero3")
    third = run(folder, *more, "train.max_steps=20")
    for done in (first, second, third):
        assert done.returncode == 0, done.stderr + done.stdout
    assert losses(folder / "moving" / "log.jsonl") == pytest.approx(losses(folder / "alone" / "log.jsonl"), rel=1e-5)
    assert "step-7" in second.stdout
    assert "28 samples seen" in second.stdout
    assert "Saved by pp=2,tp=2" in second.stdout
    assert "step-14" in third.stdout


def test_a_layout_that_needs_more_ranks_says_how_to_start_them(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    refused = run(folder, "train", "run.yaml", "layout.tp=2")
    assert refused.returncode == 2
    assert "--nproc-per-node 2" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not (folder / "runs").exists()
    refused = run(folder, "train", "run.yaml", "--nproc-per-node", "3", "layout.tp=2")
    assert refused.returncode == 2
    assert refused.stderr.count("error:") == 1, "refused before any rank was started"


def test_what_one_rank_refuses_ends_all_with_one_message(tmp_path: Path) -> None:
    folder = make_folder(tmp_path)
    refused = run(folder, "train", "run.yaml", "--nproc-per-node", "2", "data.sources=nowhere.txt")
    assert refused.returncode == 2
    assert refused.stderr.count("nowhere.txt") == 1, refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_run_takes_a_plan_or_finds_one_and_keeps_to_it(tmp_path: Path) -> None:
    """The planner's cuts are blocks of the real model; what it predicted is told beside what was measured."""
    folder = make_folder(tmp_path)
    words = ["train", "run.yaml", "train.max_steps=2", "--nproc-per-node", "2"]
    made = run(folder, "plan", "run.yaml", "--cluster", "cpu:2x1", "--precision=fp32", "--fix=pp=2", "--out=plan.json")
    assert made.returncode == 0, made.stderr
    by_plan = run(folder, *words, "layout=plan.json", "run.dir=planned")
    assert by_plan.returncode == 0, by_plan.stderr
    found = run(folder, *words, "layout=auto", "run.dir=found")
    assert found.returncode == 0, found.stderr
    assert "layout = auto chose" in found.stdout + found.stderr
    planned = losses(folder / "planned" / "log.jsonl")
    assert planned == pytest.approx(losses(folder / "found" / "log.jsonl"), rel=SAME)
    for done in (by_plan, found):
        assert done.stdout.count("predicted") == 2, "memory and a step's time"
    decided = (folder / "found" / "plan.json").read_text()
    words[2:3] = ["train.max_steps=3", "--extend", "hold", "--resume"]
    again = run(folder, *words, "layout=auto", "run.dir=found")
    assert again.returncode == 0, again.stderr
    assert "as decided for this run before" in again.stdout + again.stderr
    assert (folder / "found" / "plan.json").read_text() == decided
