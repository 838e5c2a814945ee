"""A rank that is killed can't say so; who started it does."""

import os
import signal
import subprocess
import sys

import pytest

from tests.cli.train_command import lay_out
from trireme.cli import ranks
from trireme.testing.faults import start_run, wait_for_step


def test_a_killed_rank_is_named_and_the_others_end(monkeypatch, capsys):
    started = []

    def start(words, environ):
        kill = "import os, time; os.kill(os.getpid(), 9) if os.environ['RANK'] == '1' else time.sleep(60)"
        started.append(subprocess.Popen([sys.executable, "-c", kill], env=environ))
        return started[-1]

    monkeypatch.setattr(ranks, "_start", start)
    assert ranks.run_ranks([], num_ranks=2) == 137
    assert all(each.poll() is not None for each in started)
    assert "rank 1 was ended by SIGKILL" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["dp=2", "zero3"])
def test_who_is_left_says_that_another_ended_and_shows_no_traceback(layout, tmp_path):
    lay_out(tmp_path)
    words = ["train", "run.yaml", "--nproc-per-node", "2", f"layout={layout}", "train.max_steps=4000"]
    run = start_run(words, folder=tmp_path)
    wait_for_step(tmp_path / "runs" / "run" / "log.jsonl", 3, run=run)
    children = subprocess.run(["pgrep", "-P", str(run.process.pid)], capture_output=True, text=True).stdout.split()
    os.kill(int(children[-1]), signal.SIGKILL)
    ended = run.finish(timeout_s=60.0)
    assert ended.exit_code == 137
    assert "was ended by SIGKILL" in ended.errors
    assert "Traceback" not in ended.errors, ended.errors
