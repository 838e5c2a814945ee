"""``trireme verify``: exit status, one line for a mistake, JSON that a program can read."""

from pathlib import Path

import pytest

from trireme.cli import main

ZOO = Path(__file__).parents[2] / "recipes" / "zoo"


@pytest.fixture(autouse=True)
def _english(monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "en")


@pytest.mark.parametrize(
    "words",
    [
        ["--layout", "tp=2", "--ranks", "2"],
        ["--model", "nowhere.py:build", "--layout", "tp=2", "--ranks", "2"],
        ["--model", f"{ZOO / 'mixer'}.py:make", "--ranks", "2"],
        ["--model", f"{ZOO / 'mixer'}.py:build", "--layout", "tp=3", "--ranks", "4"],
        ["--model", f"{ZOO / 'mixer'}.py:build", "--layout", "quick", "--ranks", "4"],
        ["--model", f"{ZOO / 'mixer'}.py:build", "--layout", "dp=2", "--ranks", "2", "--inject", "gremlin"],
        ["--model", f"{ZOO / 'mixer'}.py:build", "--layout", "dp=2", "--ranks", "2", "--inject", "stage-mask"],
        ["--model", f"{ZOO / 'mixer'}.py:build", "--layout", "dp=2", "--ranks", "2", "--shrink"],
        ["--model", f"{ZOO / 'mixer'}.py:build", "--ranks", "two"],
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(words, capsys):
    assert main(["verify", *words]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.count("\n") == 1
    assert said.err.startswith("error: ")
