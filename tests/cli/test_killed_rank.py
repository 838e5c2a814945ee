"""A rank that is killed can't say so; who started it does."""

import os
import signal

import psutil
import pytest

from tests.cli.train_command import lay_out
from trireme.testing.faults import start_run, wait_for_step


@pytest.mark.parametrize("layout", ["dp=2", "zero3"])
def test_who_is_left_says_that_another_ended_and_shows_no_traceback(layout, tmp_path):
    lay_out(tmp_path)
    words = ["train", "run.yaml", "--nproc-per-node", "2", f"layout={layout}", "train.max_steps=4000"]
    run = start_run(words, folder=tmp_path)
    wait_for_step(tmp_path / "runs" / "run" / "log.jsonl", 3, run=run)
    (server,) = psutil.Process(run.process.pid).children()
    os.kill(server.children()[-1].pid, signal.SIGKILL)
    ended = run.finish(timeout_s=60.0)
    assert ended.exit_code == 137
    assert "rank 1" in ended.errors
    assert "was ended by SIGKILL" in ended.errors
    assert "Traceback" not in ended.errors, ended.errors
