"""Several nodes, here several launchers of this machine: they meet, fail, shrink and end together."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.train_command import lay_out, lines_of, steps_of
from trireme.testing.faults import StartedRun, start_run, wait_for_step

LIMIT_S = 120.0
SAME = 2e-5
"""fp32, relative: another number of ranks sums in another order."""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Nodes:
    """Launchers that meet at one port."""

    def __init__(self, folder: Path, *, nnodes: str, words: tuple[str, ...], settings: tuple[str, ...]) -> None:
        lay_out(folder)
        self.folder, self.settings = folder, settings
        where = (
            "--nnodes",
            nnodes,
            "--rdzv-endpoint",
            f"127.0.0.1:{free_port()}",
            "--rdzv-timeout",
            "20",
            "--rdzv-id",
            "job-7",
        )
        self.words = ("launch", "--nproc-per-node", "1", *where, *words, "run.yaml")
        self.log = folder / "runs" / "run" / "log.jsonl"

    def start(self, **environ: str) -> StartedRun:
        return start_run([*self.words, *self.settings], folder=self.folder, environ=environ)


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in lines_of(folder / "runs" / "run" / "log.jsonl")]


def family_of(run: StartedRun) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def all_gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=5.0)
    return not [each for each in alive if each.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of one process."""
    folder = tmp_path_factory.mktemp("alone")
    lay_out(folder)
    assert (
        start_run(["train", "run.yaml", "train.max_steps=12"], folder=folder).finish(timeout_s=LIMIT_S).exit_code == 0
    )
    return losses(folder)


def test_lau_03_a_rank_that_fails_on_one_node_restarts_all_and_late_nodes_learn_that_it_is_over(
    tmp_path: Path, alone: list[float]
) -> None:
    """LAU-03 and K8S-02: every node starts again from the checkpoint; a launcher that comes too late ends with 0."""
    nodes = Nodes(tmp_path, nnodes="2", words=("--max-restarts", "1"), settings=("train.max_steps=12",))
    fault = {"TRIREME_FAULT": "raise@step=5,rank=1"}
    runs = [nodes.start(**fault) for _ in range(2)]
    ended = [run.finish(timeout_s=LIMIT_S) for run in runs]
    assert [each.exit_code for each in ended] == [0, 0], ended[0].errors + ended[1].errors
    assert all("RuntimeError: raise@step=5" in each.errors for each in ended), "both say why"
    assert losses(tmp_path) == pytest.approx(alone, rel=SAME)
    late = nodes.start().finish(timeout_s=LIMIT_S / 2)  # 15 s on a quiet machine
    assert late.exit_code == 0
    assert "complete already" in late.errors


def test_lau_03_without_restarts_every_node_ends(tmp_path: Path) -> None:
    """LAU-03: nobody waits in a collective for a rank that is gone."""
    nodes = Nodes(tmp_path, nnodes="2", words=("--max-restarts", "0"), settings=("train.max_steps=4000",))
    runs = [nodes.start(TRIREME_FAULT="raise@step=5,rank=1") for _ in range(2)]
    begun_s = time.monotonic()
    ended = [run.finish(timeout_s=LIMIT_S) for run in runs]
    assert all(each.exit_code != 0 for each in ended)
    assert time.monotonic() - begun_s < LIMIT_S


def test_lau_05_nodes_end_when_the_one_where_they_meet_is_killed(tmp_path: Path) -> None:
    """LAU-05: a launcher that can't reach the others ends within its limit and leaves no child."""
    nodes = Nodes(tmp_path, nnodes="2", words=(), settings=("train.max_steps=4000",))
    host = nodes.start()
    time.sleep(1.0)  # who comes first hosts
    other = nodes.start()
    wait_for_step(nodes.log, 3, run=host)
    families = family_of(host) + family_of(other)
    os.kill(host.process.pid, signal.SIGKILL)
    ended = other.finish(timeout_s=30.0)
    host.process.communicate()
    assert ended.exit_code != 0
    assert all_gone(families)


def test_lau_06_a_signal_on_one_node_ends_all_saved(tmp_path: Path) -> None:
    """LAU-06: Ctrl-C on any launcher ends the job everywhere, with one agreed step saved."""
    settings = ("train.max_steps=4000", "checkpoint.every_steps=4000")
    nodes = Nodes(tmp_path, nnodes="2", words=(), settings=settings)
    runs = [nodes.start() for _ in range(2)]
    wait_for_step(nodes.log, 3, run=runs[0])
    families = family_of(runs[0]) + family_of(runs[1])
    os.kill(runs[1].process.pid, signal.SIGINT)
    ended = [run.finish(timeout_s=30.0) for run in runs]
    assert ended[1].exit_code == 130, ended[1].errors
    assert ended[0].exit_code != 0, ended[0].errors
    (saved,) = (tmp_path / "runs" / "run" / "checkpoints").iterdir()
    assert saved.name == f"step-{steps_of(tmp_path / 'runs' / 'run')[-1][0]}"
    assert all_gone(families)


def test_a_run_shrinks_when_a_node_is_lost_and_grows_when_one_comes(tmp_path: Path, alone: list[float]) -> None:
    """The layout takes the ranks there are; samples and losses stay those of one process."""
    slow = {"TRIREME_FAULT": "slow@rank=0,seconds=0.4,times=99;slow@rank=0,seconds=3,times=99,attempt=1"}
    nodes = Nodes(tmp_path, nnodes="1:2", words=(), settings=("train.max_steps=12", "checkpoint.every_steps=1"))
    first = nodes.start(**slow)
    time.sleep(1.0)
    second = nodes.start(**slow)
    wait_for_step(nodes.log, 3, run=first)
    families = family_of(second)
    second.kill()
    assert all_gone(families)
    wait_for_step(nodes.log, 6, run=first)
    third = nodes.start(**slow)
    ended = first.finish(timeout_s=LIMIT_S)
    last = third.finish(timeout_s=LIMIT_S)
    assert (ended.exit_code, last.exit_code) == (0, 0), ended.errors + last.errors
    assert losses(tmp_path) == pytest.approx(alone, rel=SAME)
