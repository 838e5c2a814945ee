"""``trireme launch --slurm``: the batch file under the variables and programs that Slurm documents, played by scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.train_command import lay_out, steps_of
from trireme.testing.faults import last_step

LIMIT_S = 90.0
FAKES = {
    "sbatch": 'echo "Submitted batch job 42"; cp "$1" submitted.sbatch',
    "srun": 'shift; exec "$@"',  # one node: the step is the command itself
    "scontrol": 'if [ "$1" = show ]; then echo localhost; else echo "$@" >> requeued.txt; fi',
}


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """Slurm's programs on the path and the variables of a job on one node."""
    lay_out(tmp_path)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, body in FAKES.items():
        (programs / name).write_text(f"#!/bin/bash\n{body}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
    return {**os.environ, **job, "PATH": path}


def submit(folder: Path, cluster: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = ["trireme", "launch", "--slurm", "--nproc-per-node", "2", "--time", "1:00:00", *words]
    given = ["run.yaml", "train.max_steps=12", "checkpoint.every_steps=100"]
    return subprocess.run([*command, *given], cwd=folder, env=cluster, capture_output=True, text=True, check=False)


def test_a_job_that_is_told_of_its_end_saves_is_queued_again_and_goes_on(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    """LAU-10 under Slurm: USR1 reaches the shell alone; the run is saved, requeued, and ends with all its steps."""
    done = submit(tmp_path, cluster, "--partition", "gpu")
    assert (done.returncode, "Submitted batch job 42" in done.stdout) == (0, True), done.stderr
    text = (tmp_path / "submitted.sbatch").read_text()
    for line in ("--time=1:00:00", "--partition=gpu", "--signal=B:USR1@120", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {line}\n" in text
    slow = {**cluster, "TRIREME_FAULT": "slow@step=5,rank=0,seconds=4"}
    job = subprocess.Popen(["bash", "submitted.sbatch"], cwd=tmp_path, env=slow, start_new_session=True)
    log = tmp_path / "runs" / "run" / "log.jsonl"
    deadline_s = time.monotonic() + LIMIT_S
    while last_step(log) < 5 and time.monotonic() < deadline_s:
        time.sleep(0.02)
    os.kill(job.pid, signal.SIGUSR1)
    assert job.wait(LIMIT_S) == 128 + signal.SIGUSR1
    assert (tmp_path / "requeued.txt").read_text() == "requeue 42\n"
    stopped_at = last_step(log)
    assert 5 <= stopped_at < 12
    again = {**cluster, "SLURM_RESTART_COUNT": "1"}
    assert subprocess.run(["bash", "submitted.sbatch"], cwd=tmp_path, env=again, check=False).returncode == 0
    assert [step[0] for step in steps_of(tmp_path / "runs" / "run")] == list(range(1, 13))
    assert (tmp_path / "requeued.txt").read_text() == "requeue 42\n", "a job that is done stays done"


def test_what_slurm_refuses_or_is_not_there_is_said(tmp_path: Path, cluster: dict[str, str]) -> None:
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/bash\necho 'invalid partition' >&2; exit 1\n")
    refused = submit(tmp_path, cluster)
    assert refused.returncode == 2
    assert "sbatch refuses: invalid partition" in refused.stderr
    dry = submit(tmp_path, cluster, "--dry-run", "--nodes", "4", "--gpus-per-node", "8")
    assert dry.returncode == 0, dry.stderr
    text = (tmp_path / "slurm" / "run" / "job.sbatch").read_text()
    assert "#SBATCH --nodes=4\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
    assert "--nproc-per-node 8" in text
    words = ["trireme", "launch", "--partition", "gpu", "run.yaml"]
    lone = subprocess.run(words, cwd=tmp_path, env=cluster, capture_output=True, text=True, check=False)
    assert (lone.returncode, "--partition needs --slurm" in lone.stderr) == (2, True)
