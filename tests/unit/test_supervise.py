"""Supervision without processes: the policy row by row, budgets, heartbeats, causes, faults."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trireme.errors import CheckpointError, ConfigError, DataError, DeviceError, TrainError, TriremeError
from trireme.supervise import TABLE, Budget, Failure, History, Patience, decide, kind_of, parse_budget, parse_faults
from trireme.supervise.failure import KINDS, Kind, first_cause
from trireme.supervise.policy import Action
from trireme.supervise.pulse import Beat, Phase, Pulse, read_pulse
from trireme.supervise.watch import Verdict, Watch, suspect


def failure(kind: Kind = "killed", *, rank: int | None = 1, at_s: float = 0.0) -> Failure:
    return Failure(rank=rank, kind=kind, message="m", step=3, at_s=at_s)


def decided(
    history: History, kind: Kind = "killed", *, now_s: float = 0.0, place: str = "rank 1", **more: bool
) -> Action:
    answers = {"can_exclude": False, "progressed": True, **more}
    return decide(failure(kind), history=history, now_s=now_s, place=place, **answers).action


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("user", "stop"),
        ("memory", "stop"),
        ("disk", "stop"),
        ("diverged", "stop"),
        ("corrupt", "restart"),
        ("worker", "restart"),
        ("crash", "restart"),
        ("exit", "restart"),
        ("killed", "restart"),
        ("hang", "restart"),
        ("init", "restart"),
        ("lost", "restart"),
    ],
)
def test_every_kind_of_failure_has_its_row(kind: Kind, action: Action) -> None:
    assert decided(History(budget=Budget(restarts=3)), kind) == action
    assert set(TABLE) == set(KINDS)


def test_the_same_rank_twice_stops_and_a_node_is_left_out_where_enough_are_left() -> None:
    history = History(budget=Budget(restarts=9, window_s=600))
    assert [decided(history, now_s=now_s) for now_s in (0, 60)] == ["restart", "stop"]
    history = History(budget=Budget(restarts=9, window_s=600))
    assert decided(history) == "restart"
    assert decided(history, place="rank 0", now_s=30) == "restart", "another rank is another matter"
    assert decided(history, now_s=60, can_exclude=True) == "exclude"
    history = History(budget=Budget(restarts=9, window_s=600))
    assert [decided(history, now_s=now_s) for now_s in (0, 601)] == ["restart", "restart"], "the window passed"


def test_the_budget_is_one_of_a_window_and_waiting_grows_only_without_progress() -> None:
    history = History(budget=parse_budget("2/10min"), same_rank_limit=99)
    assert [decided(history, now_s=now_s) for now_s in (0, 1, 2, 601, 602)] == [
        "restart",
        "restart",
        "stop",
        "restart",
        "restart",
    ]
    history = History(budget=parse_budget("99"), same_rank_limit=99)
    waits = [
        decide(failure(), history=history, now_s=0, place="", can_exclude=False, progressed=progressed).wait_s
        for progressed in (True, False, False, False, True)
    ]
    assert waits == [0, 0, 1, 2, 0]
    assert parse_budget("20/1h") == Budget(restarts=20, window_s=3600)
    for text in ("", "-1", "3/10", "3/10days", "three", "3/0min", "3/0.0s"):
        with pytest.raises(ConfigError):
            parse_budget(text)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConfigError("job.resume_or_overwrite"), "user"),
        (DeviceError("train.out_of_memory", device="x", rows=2, half=1), "memory"),
        (MemoryError(), "memory"),
        (OSError(28, "No space left on device"), "disk"),
        (CheckpointError("checkpoint.no_space", path="p", needed="1", free="0"), "disk"),
        (TrainError("train.nonfinite_stop", step=1, loss=1.0, grad_norm=1.0, ids="1"), "diverged"),
        (DataError("sample.worker_died", worker=0, pid=1, fate="f", step=1), "worker"),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer"), "lost"),
        (ValueError("bad row 7"), "crash"),
    ],
)
def test_an_error_says_what_it_is_to_the_policy(error: Exception, kind: Kind) -> None:
    assert kind_of(error) == kind


def test_a_refusal_that_another_rank_shows_is_no_cause_here() -> None:
    error = TriremeError("job.resume_or_overwrite")
    error.said_elsewhere = True
    assert kind_of(error) == "lost"
    assert first_cause([failure("lost", rank=0, at_s=1.0), failure("killed", rank=1, at_s=2.0)]).rank == 1


def test_a_pulse_is_read_as_it_was_beaten_and_a_cut_one_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.pulse"
    pulse = Pulse(path)
    pulse.beat("step", step=7)
    pulse.beat("saving", save_s=0.5)
    pulse.beat("step", settled=True, save_s=0.1)
    beat = read_pulse(path)
    assert beat is not None
    assert (beat.step, beat.phase, beat.settled) == (7, "step", True)
    assert beat.save_s == 0.5, "the longest"
    path.write_bytes(b"short")
    assert read_pulse(path) is None
    assert read_pulse(tmp_path / "none") is None


def beats(*ranks: tuple[int, Phase, float], gap_s: float = 0.0) -> dict[int, Beat | None]:
    now_s = time.monotonic()
    return {
        rank: Beat(count=step, step=step, phase=phase, settled=True, at_s=now_s - ago_s, gap_s=gap_s, save_s=0.0)
        for rank, (step, phase, ago_s) in enumerate(ranks)
    }


def test_who_stands_in_a_step_hangs_and_who_may_take_long_does_not() -> None:
    watch = Watch(patience=Patience(hang_s=10))
    assert watch.look(beats((5, "step", 9), (5, "step", 9)), {}) is None
    found = watch.look(beats((5, "step", 11), (4, "step", 11)), {})
    assert found is not None
    assert (found.kind, found.ranks[0]) == ("hang", 1), "who is behind comes first"
    assert watch.look(beats((5, "saving", 60), (5, "step", 60)), {}) is None, "one saves, the other waits for it"
    assert watch.look(beats((5, "step", 30), (5, "step", 30), gap_s=8.0), {}) is None, "its steps take long anyway"
    assert watch.look(beats((5, "step", 33), (5, "step", 33), gap_s=8.0), {}) is not None
    assert watch.look(beats((5, "evaluating", 1801), (5, "evaluating", 1801)), {}) is not None


def test_the_rank_that_waits_for_nobody_is_suspected() -> None:
    verdict = Verdict(kind="hang", ranks=(0, 1), message="")
    waits = 'Thread 0x1\n  File "a"\nCurrent thread 0x2 (most recent call first):\n  File "torch/distributed/c10d.py", line 1'
    sleeps = 'Current thread 0x2 (most recent call first):\n  File "user.py", line 3 in fetch'
    assert suspect(verdict, {0: waits, 1: sleeps}) == 1
    assert suspect(verdict, {0: waits, 1: ""}) == 0, "no stack says nothing"


def test_faults_are_read_and_what_is_unknown_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (fault,) = parse_faults("kill@step=5,rank=1")
    assert (fault.name, fault.step, fault.rank, fault.attempt) == ("kill", 5, 1, 0)
    for text in ("explode@step=1", "kill@when=3", "kill@step=x"):
        with pytest.raises(ConfigError):
            parse_faults(text)
    from trireme.supervise import strike

    monkeypatch.setitem(os.environ, "TRIREME_FAULT", "nan@step=4,rank=0")
    assert strike("gradient", step=3) is None
    assert strike("save", step=4) is None
    found = strike("gradient", step=4)
    assert found is not None
    assert found.name == "nan"
    assert strike("gradient", step=4) is None, "once"
