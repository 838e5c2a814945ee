"""The rank starter: values come home, failures are told, nothing hangs and nothing is left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

from trireme.mesh import LaunchEnvironment, RankError, run_on_ranks
from trireme.testing.ranks import on_ranks

_START_LIMIT_S = 10.0
"""Eight ranks take 0.2 s from a warm server; its first start imports torch, on a machine that may be busy."""


def _sum_of_ranks(scale=1.0):
    total = torch.full((4,), scale * dist.get_rank())
    dist.all_reduce(total)
    return total.tolist()


def _describe():
    environment = LaunchEnvironment.from_environ()
    return environment.rank, environment.world_size, torch.get_num_threads(), os.getpid()


def _fail_on(rank, others):
    if dist.get_rank() == rank:
        raise ValueError(f"wrong on {rank}")
    if others == "wait":
        dist.barrier()
    elif others == "fail later":
        time.sleep(0.2)
        raise RuntimeError("a consequence")


def _die_on(rank):
    if dist.get_rank() == rank:
        os._exit(3)
    dist.barrier()


def _sleep_in_a_place_with_a_name():
    time.sleep(600)


def _hang_on(rank):
    if dist.get_rank() == rank:
        _sleep_in_a_place_with_a_name()


def _start_a_child_and_hang(folder):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(folder, f"pid-{dist.get_rank()}").write_text(str(child.pid))
    time.sleep(600)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_every_rank_returns_its_value(num_ranks):
    expected = [2.0 * sum(range(num_ranks))] * 4
    assert run_on_ranks(_sum_of_ranks, num_ranks, scale=2.0) == [expected] * num_ranks


def test_ranks_know_their_place_and_have_one_thread_each():
    described = run_on_ranks(_describe, 4)
    assert [(rank, world, threads) for rank, world, threads, _ in described] == [(rank, 4, 1) for rank in range(4)]
    assert len({pid for *_, pid in described} | {os.getpid()}) == 5


def test_eight_ranks_start_quickly():
    run_on_ranks(_sum_of_ranks, 2)
    start_s = time.perf_counter()
    run_on_ranks(_sum_of_ranks, 8)
    assert time.perf_counter() - start_s < _START_LIMIT_S


def test_a_failing_rank_is_told_with_its_traceback_while_others_wait():
    start_s = time.perf_counter()
    with pytest.raises(RankError, match="rank 1 of 3 failed") as caught:
        run_on_ranks(_fail_on, 3, rank=1, others="wait")
    assert "ValueError: wrong on 1" in str(caught.value)
    assert "_fail_on" in str(caught.value)
    assert time.perf_counter() - start_s < _START_LIMIT_S


def test_of_several_failures_the_earliest_comes_first():
    with pytest.raises(RankError) as caught:
        run_on_ranks(_fail_on, 2, rank=1, others="fail later")
    text = str(caught.value)
    assert text.index("wrong on 1") < text.index("a consequence")


def test_a_dying_rank_is_told_with_its_exit_code():
    with pytest.raises(RankError, match="died without a word, exit code 3") as caught:
        run_on_ranks(_die_on, 2, rank=1)
    assert str(caught.value).startswith("rank 1 of 2")


def test_a_hanging_rank_is_killed_at_the_limit_with_its_stack():
    start_s = time.perf_counter()
    with pytest.raises(RankError, match=r"still running after 1\.5 s") as caught:
        run_on_ranks(_hang_on, 2, rank=1, timeout_s=1.5)
    assert "_sleep_in_a_place_with_a_name" in str(caught.value)
    assert time.perf_counter() - start_s < 1.5 + _START_LIMIT_S


def _gone(pid):
    deadline_s = time.monotonic() + 5
    while time.monotonic() < deadline_s:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_whatever_a_hanging_rank_started_goes_with_it(tmp_path):
    with pytest.raises(RankError):
        run_on_ranks(_start_a_child_and_hang, 2, timeout_s=3.0, folder=str(tmp_path))
    children = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    assert len(children) == 2
    assert all(_gone(pid) for pid in children)


_STARTER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.ranks.test_harness import _report_and_sleep
from trireme.mesh import run_on_ranks
if __name__ == "__main__":
    run_on_ranks(_report_and_sleep, 2, folder=sys.argv[2])
"""


def _report_and_sleep(folder):
    Path(folder, f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
    time.sleep(600)


def test_ranks_die_with_the_process_that_started_them(tmp_path):
    script = tmp_path / "starter.py"
    script.write_text(_STARTER)
    root = Path(__file__).parents[2]
    starter = subprocess.Popen([sys.executable, str(script), str(root), str(tmp_path)])
    deadline_s = time.monotonic() + 60
    while len(list(tmp_path.glob("pid-*"))) < 2 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    time.sleep(0.1)
    ranks = [int(path.read_text()) for path in tmp_path.glob("pid-*")]
    starter.kill()
    starter.wait()
    assert len(ranks) == 2
    assert all(_gone(pid) for pid in ranks)


@on_ranks(1, 2, 4)
def test_a_test_can_run_on_every_rank():
    total = torch.ones(3)
    dist.all_reduce(total)
    assert total.tolist() == [float(dist.get_world_size())] * 3


@on_ranks(2)
@pytest.mark.parametrize("value", [3, 5])
def test_parameters_and_fixtures_reach_every_rank(value, tmp_path):
    assert value in (3, 5)
    (tmp_path / f"rank-{dist.get_rank()}").write_text(str(value))
    dist.barrier()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failure_on_a_rank_fails_the_test():
    @on_ranks(2)
    def body():
        raise AssertionError

    # Only module-level functions are found in a rank; a nested one is an error, never a silent pass.
    with pytest.raises(RankError, match="<locals>"):
        body(num_ranks=2)
