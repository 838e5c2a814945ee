"""Ranks, layouts and workers that change at every kill: the losses stay those of one process."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cli.train_command import lay_out, lines_of
from trireme.testing.faults import start_run

LIMIT_S = 120.0
SAME = 2e-5
"""fp32 over twelve steps, relative: sums in another order, which AdamW makes larger."""

PLACES = [(1, "dp=1"), (2, "dp=2"), (2, "tp=2"), (2, "zero3"), (2, "pp=2")]


def losses(folder: Path, name: str) -> list[float]:
    return [line["loss"] for line in lines_of(folder / "runs" / name / "log.jsonl")]


@pytest.mark.parametrize("seed", [7])
def test_a_run_that_is_killed_and_moved_again_and_again_keeps_its_losses(seed: int, tmp_path: Path) -> None:
    """CKP-06, CKP-20: a drawn sequence of (ranks, layout, workers, kill)."""
    lay_out(tmp_path)
    common = ["train.max_steps=12", "train.schedule=constant", "train.microbatch_seqs="]
    alone = start_run(["train", "run.yaml", *common, "run.dir=runs/alone"], folder=tmp_path)
    assert alone.finish(timeout_s=LIMIT_S).exit_code == 0
    draw = random.Random(seed)
    kills = [*sorted(draw.sample(range(2, 12), 2)), None]
    for kill, (ranks, layout) in zip(kills, draw.sample(PLACES, len(kills)), strict=True):
        options = ["--nproc-per-node", str(ranks), "--max-restarts", "0", "--auto-resume"]
        settings = [*common, "run.dir=runs/moved", f"layout={layout}", f"data.workers={draw.randrange(3)}"]
        fault = {} if kill is None else {"TRIREME_FAULT": f"kill@step={kill},rank={draw.randrange(ranks)}"}
        ended = start_run(["launch", *options, "run.yaml", *settings], folder=tmp_path, environ=fault)
        done = ended.finish(timeout_s=LIMIT_S)
        assert done.exit_code == (0 if kill is None else 137), done.errors
    assert losses(tmp_path, "moved") == pytest.approx(losses(tmp_path, "alone"), rel=SAME)
