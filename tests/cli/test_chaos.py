"""``trireme chaos``: a fault is found, named and made good; what can't be asked is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cli.train_command import lay_out
from trireme.cli import main
from trireme.testing.faults import start_run


def test_a_flipped_bit_of_the_weights_is_found_by_comparing_copies(tmp_path: Path) -> None:
    """The rank pair and the parameter are named; the run goes on from the checkpoint and equals the unbroken one."""
    words = ["chaos", "--matrix", "--only", "bit_flip_weights", "--table", "page.md"]
    done = start_run(words, folder=tmp_path).finish(timeout_s=200.0)
    assert done.exit_code == 0, done.output + done.errors
    assert "noticed by corrupt" in done.output
    assert "embed_tokens.weight" in done.output
    assert "| corrupt |" in (tmp_path / "page.md").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fault", "explode"], "There is no fault explode"),
        (["--fault", "kill@step=99"], "lies outside the run"),
        (["--fault", "kill@when=1"], "is not NAME@key=number"),
        ([], "--matrix alone"),
    ],
)
def test_a_drill_that_cannot_be_is_refused(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["chaos", "run.yaml", *words]) == 2
    assert said in capsys.readouterr().err
    assert not os.path.exists("runs")
