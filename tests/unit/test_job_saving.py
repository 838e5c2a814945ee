"""Saving as a run sees it: how often, what a failure costs, where a copy comes back from, whose random state is whose."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import trireme
from tests.cli.train_command import SETTINGS, TEXT, lines_of, steps_of, texts_of
from trireme.checkpoint import newest_checkpoint
from trireme.checkpoint.fault import VARIABLE
from trireme.errors import CheckpointError
from trireme.job.saving import best_interval
from trireme.train.rng import capture_rng, merge_rng, restore_rng, rng_of_rank

CPU = torch.device("cpu")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return {**SETTINGS, "run": {"dir": "out"}}


def with_checkpoint(settings: dict[str, Any], **keys: Any) -> dict[str, Any]:
    return {**settings, "checkpoint": {**settings["checkpoint"], **keys}}


@pytest.mark.parametrize(
    ("stall_s", "step_s", "mtbf_s"), [(0.2, 1.0, 3600.0), (5.0, 0.5, 20_000.0), (30.0, 10.0, 900.0)]
)
def test_the_interval_is_the_one_that_loses_least_time(stall_s: float, step_s: float, mtbf_s: float) -> None:
    def lost(steps: int) -> float:
        """Daly's expected time for a unit of work, restarts left out: they cost the same at any interval."""
        work_s = steps * step_s
        return mtbf_s * (torch.tensor((work_s + stall_s) / mtbf_s).double().expm1().item()) / work_s

    best = min(range(1, 4000), key=lost)
    chosen = best_interval(stall_s=stall_s, step_s=step_s, mtbf_s=mtbf_s)
    assert lost(chosen) <= lost(best) * 1.0005


def test_a_save_that_fails_in_the_middle_is_told_and_the_run_goes_on(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CKP-31: the disk is full at the first save; those after it are made, and the run is what it would have been."""
    monkeypatch.setenv(VARIABLE, json.dumps({"kind": "full", "marks": str(tmp_path / "marks")}))
    assert trireme.run(settings).status == "finished"
    names = sorted(each.name for each in (tmp_path / "out" / "checkpoints").iterdir())
    assert names == ["step-4", "step-6"]
    assert "the run goes on with the one before" in texts_of(tmp_path / "out", level="warning")
    saved = [event for event in lines_of(tmp_path / "out" / "events.jsonl") if event["kind"] == "save"]
    assert [event["step"] for event in saved] == [4, 6]


def test_the_last_save_of_a_run_must_be_made(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"kind": "full", "times": 99}))
    with pytest.raises(CheckpointError, match="last checkpoint"):
        trireme.run(settings)


def test_written_before_going_on_or_beside_it_a_run_is_the_same(settings: dict[str, Any], tmp_path: Path) -> None:
    trireme.run(settings)
    trireme.run({**with_checkpoint(settings, background=False), "run": {"dir": "plain"}})
    assert steps_of(tmp_path / "out") == steps_of(tmp_path / "plain")
    one, other = (newest_checkpoint(tmp_path / name / "checkpoints") for name in ("out", "plain"))
    assert one is not None
    assert other is not None
    assert one.manifest.tensors == other.manifest.tensors


def test_how_often_follows_from_what_was_measured(settings: dict[str, Any], tmp_path: Path) -> None:
    """A failure each millisecond: save after every step; the first comes after ten by itself."""
    asked = with_checkpoint(settings, every_steps=None, mtbf_hours=1e-9, keep_last=99)
    trireme.run({**asked, "train": {**settings["train"], "max_steps": 14}})
    steps = sorted(int(each.name.removeprefix("step-")) for each in (tmp_path / "out" / "checkpoints").iterdir())
    assert steps[0] == 10
    assert steps[-3:] == [12, 13, 14]


def test_a_lost_folder_of_checkpoints_comes_back_from_its_copy(settings: dict[str, Any], tmp_path: Path) -> None:
    asked = with_checkpoint(settings, copy_to=str(tmp_path / "elsewhere"))
    trireme.run({**asked, "train": {**settings["train"], "max_steps": 6}})
    whole = steps_of(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    shutil.rmtree(tmp_path / "elsewhere" / "step-6")
    assert trireme.run(asked, resume=True).status == "finished"
    assert steps_of(tmp_path / "out") == whole
    assert "brought back" in texts_of(tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("{run}/out/checkpoints", "keeps its checkpoints anyway"),
        ("{run}/a-file", "can't take copies"),
        ("/proc/nowhere", "can't take copies"),
        ("nosuch://bucket/x", "can't take copies"),
    ],
)
def test_a_place_that_takes_no_copies_is_refused_before_the_first_step(
    settings: dict[str, Any], tmp_path: Path, place: str, told: str
) -> None:
    (tmp_path / "a-file").write_text("not a folder")
    with pytest.raises(CheckpointError, match=told):
        trireme.run(with_checkpoint(settings, copy_to=place.format(run=tmp_path)))
    assert not (tmp_path / "out" / "log.jsonl").exists()


def test_ckp_07_every_rank_has_its_own_random_state_and_a_lost_one_is_named() -> None:
    torch.manual_seed(1)
    first = capture_rng(CPU)
    torch.manual_seed(2)
    second = capture_rng(CPU)
    saved = json.loads(json.dumps(merge_rng([first, second, first])))
    assert len(saved["states"]) == 2
    for rank, seed in enumerate((1, 2, 1)):
        restore_rng(rng_of_rank(saved, rank=rank), device=CPU, rank=rank)
        found = torch.rand(3)
        torch.manual_seed(seed)
        assert torch.equal(found, torch.rand(3))
    del saved["states"][1]
    with pytest.raises(CheckpointError, match="rank 1"):
        restore_rng(rng_of_rank(saved, rank=1), device=CPU, rank=1)
