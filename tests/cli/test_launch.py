"""``trireme launch``: ranks that fail are named, started again, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.train_command import lay_out, steps_of
from trireme.testing.faults import StartedRun, start_run, wait_for_step

LIMIT_S = 90.0
DIES = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    {fault}
time.sleep({others_s})
"""


def log_of(folder: Path) -> Path:
    return folder / "runs" / "run" / "log.jsonl"


def ranks_of(run: StartedRun) -> list[psutil.Process]:
    """Return the ranks in the order they were started."""
    (server,) = psutil.Process(run.process.pid).children()
    return sorted(server.children(), key=lambda each: each.pid)


def family_of(run: StartedRun) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def gone(processes: list[psutil.Process], *, within_s: float = 5.0) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """The steps of a run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("unbroken")
    lay_out(folder)
    done = start_run(["launch", "--nproc-per-node", "2", "run.yaml", "train.max_steps=12"], folder=folder)
    assert done.finish(timeout_s=LIMIT_S).exit_code == 0
    return steps_of(folder / "runs" / "run")


def test_lau_11_a_killed_rank_is_started_again_with_workers_alive_and_nothing_is_left(
    tmp_path: Path, unbroken: list[tuple[object, ...]]
) -> None:
    """LAU-11, LAU-02 b: the run goes on from its checkpoint to the same numbers; data workers go with their rank."""
    lay_out(tmp_path)
    words = ["launch", "--nproc-per-node", "2", "run.yaml", "train.max_steps=12", "data.workers=2"]
    run = start_run(words, folder=tmp_path, environ={"TRIREME_FAULT": "slow@step=6,seconds=3"})
    wait_for_step(log_of(tmp_path), 5, run=run)
    family = family_of(run)
    assert len(family) >= 1 + 2 + 4, "the fork server, two ranks, two data workers each"
    ranks_of(run)[1].kill()
    ended = run.finish(timeout_s=LIMIT_S)
    assert ended.exit_code == 0, ended.errors
    assert "rank 1" in ended.errors
    assert "SIGKILL (signal 9): maybe the system was short of memory" in ended.errors
    assert steps_of(tmp_path / "runs" / "run") == unbroken
    assert gone(family)
    assert list((tmp_path / "runs" / "run" / "failures").glob("attempt-0-*/report.json"))


@pytest.mark.parametrize(
    ("fault", "exit_code", "told"),
    [
        ("raise ValueError('bad row 7')", 1, "ValueError: bad row 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL (signal 9): maybe the system was short of memory"),
        ("sys.exit(3)", 3, "exit code 3"),
    ],
)
def test_lau_02_the_report_says_which_rank_failed_first_and_why(
    fault: str, exit_code: int, told: str, tmp_path: Path
) -> None:
    """LAU-02: a traceback's last line, a signal with what it mostly means, an exit code."""
    (tmp_path / "script.py").write_text(DIES.format(fault=fault, others_s=60))
    run = start_run(["launch", "--nproc-per-node", "2", "--max-restarts", "0", "script.py"], folder=tmp_path)
    ended = run.finish(timeout_s=LIMIT_S)
    assert ended.exit_code == exit_code, ended.errors
    assert "rank 1" in ended.errors
    assert told in ended.errors


def test_a_stopped_rank_is_found_shown_and_the_run_goes_on(tmp_path: Path, unbroken: list[tuple[object, ...]]) -> None:
    """A rank that stands still in a step: stacks of all ranks are kept, then everything starts again."""
    lay_out(tmp_path)
    words = ["launch", "--nproc-per-node", "2", "--hang-after", "3", "run.yaml", "train.max_steps=12"]
    run = start_run(words, folder=tmp_path, environ={"TRIREME_FAULT": "stop@step=5,rank=1"})
    ended = run.finish(timeout_s=LIMIT_S)
    assert ended.exit_code == 0, ended.errors
    assert "rank 1" in ended.errors
    assert "stopped by a signal" in ended.errors
    assert steps_of(tmp_path / "runs" / "run") == unbroken
    (kept,) = (tmp_path / "runs" / "run" / "failures").iterdir()
    assert "File" in (kept / "rank-0.stack").read_text()


def test_ranks_that_never_meet_are_ended_at_the_deadline(tmp_path: Path) -> None:
    """An attempt whose ranks don't find each other ends by itself, told, instead of waiting for ever."""
    (tmp_path / "script.py").write_text(
        "import os, time\nfrom trireme.supervise import beat\nbeat('joining')\n"
        "beat('script') if os.environ['RANK'] == '0' else None\ntime.sleep(100)\n"
    )
    words = ["launch", "--nproc-per-node", "2", "--max-restarts", "1", "--init-timeout", "2", "script.py"]
    ended = start_run(words, folder=tmp_path).finish(timeout_s=LIMIT_S)
    assert ended.exit_code == 1
    assert "did not find the others within 2 s: 1 of 2 ranks are there, missing 1" in ended.errors
    assert "budget of restarts (1) is used up" in ended.errors


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_on_all_ranks_and_ends_with_its_code(number: int, tmp_path: Path) -> None:
    """Preemption (Slurm, Kubernetes) and Ctrl-C: one agreed step is saved, data workers and ranks are gone."""
    lay_out(tmp_path)
    words = ["launch", "--nproc-per-node", "2", "run.yaml", "train.max_steps=4000", "data.workers=1"]
    run = start_run([*words, "checkpoint.every_steps=4000"], folder=tmp_path)
    wait_for_step(log_of(tmp_path), 3, run=run)
    family = family_of(run)
    os.kill(run.process.pid, number)
    ended = run.finish(timeout_s=LIMIT_S)
    assert ended.exit_code == 128 + number, ended.errors
    (saved,) = (tmp_path / "runs" / "run" / "checkpoints").iterdir()
    assert saved.name == f"step-{steps_of(tmp_path / 'runs' / 'run')[-1][0]}"
    assert gone(family)


def test_lau_10_a_slow_save_is_finished_within_the_grace_and_a_grace_too_short_is_said(tmp_path: Path) -> None:
    """LAU-10: nobody cuts a save short while the grace lasts; the next start knows how long saves take."""
    lay_out(tmp_path)
    words = ["launch", "--nproc-per-node", "2", "--grace", "60", "run.yaml", "train.max_steps=4000"]
    slow = {"TRIREME_WRITE_FAULT": '{"kind": "slow", "seconds": 0.2, "only": "shard-00000"}'}
    run = start_run([*words, "checkpoint.every_steps=4000"], folder=tmp_path, environ=slow)
    wait_for_step(log_of(tmp_path), 3, run=run)
    begun_s = time.monotonic()
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.finish(timeout_s=LIMIT_S).exit_code == 143
    assert time.monotonic() - begun_s > 2.0, "the writer was slow"
    (saved,) = (tmp_path / "runs" / "run" / "checkpoints").iterdir()
    step = int(saved.name.removeprefix("step-"))
    more = ["launch", "--nproc-per-node", "2", "--grace", "1", "--resume", "run.yaml", "checkpoint.every_steps=4000"]
    length = [f"train.max_steps={step}"]
    ended = start_run([*more, *length], folder=tmp_path).finish(timeout_s=LIMIT_S)
    assert "longer than the 1 s that ranks get after SIGTERM" in ended.errors


def test_a_killed_launcher_takes_its_ranks_with_it(tmp_path: Path) -> None:
    """Whoever supervised is gone at once: no rank, no data worker, no file in shared memory outlives it."""
    lay_out(tmp_path)
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    words = ["launch", "--nproc-per-node", "2", "run.yaml", "train.max_steps=4000", "data.workers=1"]
    run = start_run(words, folder=tmp_path)
    wait_for_step(log_of(tmp_path), 3, run=run)
    family = family_of(run)
    os.kill(run.process.pid, signal.SIGKILL)
    assert gone(family)
    run.process.communicate()
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert {name for name in after - before if str(run.process.pid) in name} == set()


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import signal, time\nsignal.signal(15, signal.SIG_IGN)\ntime.sleep(100)\n")
    run = start_run(["launch", "--nproc-per-node", "2", "script.py"], folder=tmp_path)
    deadline_s = time.monotonic() + LIMIT_S
    while len(family_of(run)) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.5)
    family = family_of(run)
    os.kill(run.process.pid, signal.SIGTERM)
    time.sleep(1.2)
    os.kill(run.process.pid, signal.SIGTERM)
    assert run.finish(timeout_s=10.0).exit_code == 143
    assert gone(family)
