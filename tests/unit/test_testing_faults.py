"""The helpers that watch a run by its log and kill it."""

import subprocess
import sys
import time

import psutil
import pytest

from trireme.testing.faults import StartedRun, last_step, read_log, start_run, wait_for_step

_WRITER = """
import json, sys, time, itertools
with open(sys.argv[1], "a") as log:
    for step in itertools.islice(itertools.count(), int(sys.argv[2])):
        log.write(json.dumps({"step": step}) + "\\n"); log.flush(); time.sleep(0.01)
"""


def _writer(log, num_steps):
    command = [sys.executable, "-c", _WRITER, str(log), str(num_steps)]
    return StartedRun(
        process=subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
    )


def test_a_run_is_killed_once_its_log_reaches_the_step(tmp_path):
    run = _writer(tmp_path / "log.jsonl", 10**6)
    reached = run.kill_at_step(tmp_path / "log.jsonl", 5, timeout_s=20)
    assert reached >= 5
    assert not psutil.pid_exists(run.process.pid)
    time.sleep(0.05)
    assert last_step(tmp_path / "log.jsonl") == reached


def test_a_run_that_ends_before_the_step_is_an_error(tmp_path):
    run = _writer(tmp_path / "log.jsonl", 3)
    with pytest.raises(AssertionError, match="ended at step 2 of 99"):
        wait_for_step(tmp_path / "log.jsonl", 99, run=run, timeout_s=20)


def test_a_run_that_takes_too_long_is_killed_and_an_error(tmp_path):
    run = _writer(tmp_path / "log.jsonl", 10**6)
    with pytest.raises(AssertionError, match=r"no step 1000000 within 0\.2 s"):
        wait_for_step(tmp_path / "log.jsonl", 10**6, run=run, timeout_s=0.2)
    assert run.process.poll() is not None


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [entry["step"] for entry in read_log(log)] == [1, 2]
    assert last_step(tmp_path / "absent.jsonl") == -1


def test_a_run_of_the_program_gives_its_exit_code_and_words(tmp_path):
    finished = start_run(["--help"], folder=tmp_path).finish(timeout_s=60)
    assert finished.exit_code == 0, finished.errors
    assert "train" in finished.output
