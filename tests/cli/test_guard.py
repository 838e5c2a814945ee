"""A step whose numbers go wrong: skipped, left out after a rollback, or the end; the samples are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.train_command import Bench, lines_of, make_bench, texts_of
from trireme.chaos import same_weights

RUN = Path("runs") / "run"
LAST = Path("checkpoints") / "step-30"
WORDS = ("train.max_steps=30", "checkpoint.every_steps=10", "train.eval_every_steps=30", "train.schedule=constant")


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Bench:
    return make_bench(tmp_path, capsys, monkeypatch)


def outcomes(run: Path) -> list[int]:
    """Return the steps that were skipped."""
    return [line["step"] for line in lines_of(run / "log.jsonl") if line["skipped"]]


@pytest.mark.parametrize(("fault", "policy"), [("nan", "on_nonfinite"), ("spike", "on_spike")])
def test_a_rollback_leaves_the_bad_step_out_and_equals_the_run_that_skipped_it(
    fault: str, policy: str, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was done between the checkpoint and the bad step is done again; a resume keeps to it."""
    monkeypatch.setenv("TRIREME_FAULT", f"{fault}@step=24")
    assert bench.train(*WORDS, f"train.{policy}=skip", "run.dir=skipped").exit_code == 0
    assert outcomes(bench.path / "skipped") == [25]
    monkeypatch.setenv("TRIREME_FAULT", f"{fault}@step=24,seed=1")  # another text: it strikes again
    answer = bench.train(*WORDS, f"train.{policy}=rollback", "run.dir=back")
    assert answer.exit_code == 0, answer.errors
    assert "Steps 25 to 25 are left out" in texts_of(bench.path / "back")
    assert [line["step"] for line in lines_of(bench.path / "back" / "log.jsonl")] == [*range(1, 25), *range(26, 31)]
    assert same_weights(bench.path / "skipped" / LAST, bench.path / "back" / LAST)
    more = ("train.max_steps=32", "--resume", "--extend", "hold", "run.dir=back", f"train.{policy}=rollback")
    assert bench.train(*WORDS, *more).exit_code == 0
    from trireme.checkpoint import open_checkpoint

    newest = open_checkpoint(bench.path / "back" / "checkpoints" / "step-32")
    assert newest.state["data"]["left_out_steps"] == [24]


def test_a_spike_stops_where_that_is_asked_and_rollbacks_have_a_budget(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIREME_FAULT", "spike@step=25")
    answer = bench.train(*WORDS, "train.on_spike=stop")
    assert answer.exit_code == 2
    assert "stand far above those of late" in answer.errors
    monkeypatch.setenv("TRIREME_FAULT", "nan@step=25;nan@step=26")
    words = ("train.on_nonfinite=rollback", "train.max_rollbacks=1", "run.dir=spent")
    answer = bench.train(*WORDS, *words)
    assert answer.exit_code == 2
    assert "as often as train.max_rollbacks allows" in answer.errors
