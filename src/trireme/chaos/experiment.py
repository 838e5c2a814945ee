"""One drill carried out: the run is broken, goes on as it would for a user, and is held against the unbroken one."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trireme.chaos.damage import damage_newest, newest_step
from trireme.chaos.drill import FILE_FAULTS, OUTSIDE_FAULTS, WRITER_FAULTS, Drill
from trireme.chaos.launched import Launched, start_launch
from trireme.chaos.weights import same_weights
from trireme.errors import TrainError
from trireme.supervise import kill_sessions

LIMIT_S = 300.0
_KEPT_LINES = 30
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where drills are carried out.

    Attributes:
        folder: Runs lie below it.
        run_file: The settings, seen from there.
        ranks: Of the machine.
        max_steps: Of the run.
        words: Options of ``trireme launch`` in all of them.
        overrides: Settings in all of them.
        prefix: Stands before the names of runs.
    """

    folder: Path
    run_file: str
    ranks: int
    max_steps: int
    words: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    prefix: str = ""

    def path(self, name: str) -> Path:
        """Return a run's folder."""
        return self.folder / f"{self.prefix}{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of a drill.

    Attributes:
        drill: Which.
        found_by: Who noticed: a kind of failure, an event of the run, ``nobody``.
        found_s: From the fault to its being noticed; None where it made no failure.
        again_steps: Steps that were done a second time.
        ended: ``equal``, ``differs``, ``stopped`` or ``hung``.
        as_expected: Whether that is what should become of it.
        detail: The first line that says what was noticed.
    """

    drill: Drill
    found_by: str
    found_s: float | None
    again_steps: int
    ended: str
    as_expected: bool
    detail: str


def run_unbroken(bench: Bench, *, name: str = "unbroken", fault: str = "", overrides: Sequence[str] = ()) -> Path:
    """Run without harm, or with a step skipped, and return the run folder.

    Raises:
        TrainError: Even that fails.
    """
    launched = _start(bench, name, environ={"TRIREME_FAULT": fault}, overrides=overrides)
    code = launched.wait_until_over(LIMIT_S)
    if code != 0:
        launched.end()
        raise TrainError("chaos.unbroken_failed", code=code, said=_tail(launched))
    return bench.path(name)


def carry_out(drill: Drill, *, bench: Bench, name: str, reference: Path, seed: int = 0) -> Finding:
    """Break a run and say what became of it. ``reference`` is the run that it should equal."""
    run = bench.path(name)
    mark = bench.path(f"{name}.mark")
    environ = {"TRIREME_FAULT": drill.in_process, "TRIREME_FAULT_MARK": str(mark)}
    if drill.name in WRITER_FAULTS:
        settings = {**WRITER_FAULTS[drill.name], "marks": str(bench.path(f"{name}.count"))}
        environ = {"TRIREME_WRITE_FAULT": json.dumps(settings)}
    before = _break_outside(drill, bench=bench, name=name, seed=seed)
    words = ("--auto-resume",) if before else ()
    launched = _start(bench, name, environ=environ, overrides=drill.overrides, words=words)
    code = launched.wait_until_over(LIMIT_S)
    launched.end()
    ended = _ended(code, run, reference, bench=bench)
    cause = _cause(run)
    found_by, detail = _noticed(run, cause=cause, is_damage=drill.name in FILE_FAULTS)
    struck_s = _struck_s(mark)
    return Finding(
        drill=drill,
        found_by=found_by,
        found_s=None if cause is None or struck_s is None else max(0.0, float(cause["at_s"]) - struck_s),
        again_steps=0 if ended == "stopped" else _again(run, drill=drill, cause=cause),
        ended=ended,
        as_expected=ended == ("stopped" if drill.end == "stopped" else "equal"),
        detail=detail,
    )


def _start(
    bench: Bench,
    name: str,
    *,
    environ: dict[str, str],
    overrides: Sequence[str] = (),
    words: Sequence[str] = (),
    restarts: str = "5",
) -> Launched:
    options = ["--nproc-per-node", str(bench.ranks), "--max-restarts", restarts, *bench.words, *words]
    settings = [*bench.overrides, *overrides, f"run.dir={bench.prefix}{name}", "observe.progress=off"]
    return start_launch(
        [*options, bench.run_file, *settings], folder=bench.folder, name=f"{bench.prefix}{name}", environ=environ
    )


def _break_outside(drill: Drill, *, bench: Bench, name: str, seed: int) -> bool:
    """Kill a run before its end and damage what it left, where that is the fault; returns whether it is to go on."""
    if drill.name not in (*FILE_FAULTS, *OUTSIDE_FAULTS):
        return False
    fault = f"kill@step={drill.step}" if drill.name in FILE_FAULTS else ""
    launched = _start(bench, name, environ={"TRIREME_FAULT": fault}, restarts="0")
    if drill.name in OUTSIDE_FAULTS:
        _kill_at(launched, drill.step)
    launched.wait_until_over(LIMIT_S)
    launched.end()
    if drill.name in FILE_FAULTS:
        damage_newest(bench.path(name) / "checkpoints", fault=drill.name, seed=seed)
    return True


def _kill_at(launched: Launched, step: int) -> None:
    """Kill what supervises as soon as a rank has come so far."""
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s and launched.process.poll() is None:
        if any(beat.step >= step for beat in launched.beats().values()):
            break
        time.sleep(_LOOK_S)
    ranks = launched.ranks()
    os.kill(launched.process.pid, signal.SIGKILL)
    launched.process.wait()
    deadline_s = time.monotonic() + 10.0
    while time.monotonic() < deadline_s and any(os.path.exists(f"/proc/{pid}/fd") for pid in ranks):
        time.sleep(_LOOK_S)
    kill_sessions(ranks)


def _ended(code: int | None, run: Path, reference: Path, *, bench: Bench) -> str:
    if code is None:
        return "hung"
    if code != 0:
        return "stopped"
    last = Path("checkpoints") / f"step-{bench.max_steps}"
    is_there = newest_step(run / "checkpoints") == bench.max_steps
    return "equal" if is_there and same_weights(run / last, reference / last) else "differs"


def _cause(run: Path) -> dict[str, Any] | None:
    """Return the cause that the supervisor's last report names."""
    reports = sorted((run / "failures").glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    if not reports:
        return None
    found: dict[str, Any] = json.loads(reports[0].read_text(encoding="utf-8"))["cause"]
    return found


def _noticed(run: Path, *, cause: dict[str, Any] | None, is_damage: bool) -> tuple[str, str]:
    """Say who noticed: the run itself by a warning of its own, else the supervisor."""
    events = _events(run)
    if is_damage:  # the supervisor saw the kill before it; what counts is what the resume says
        found = [event["text"] for event in events if event["level"] == "warning" and "step-" in event["text"]]
        return ("resume", str(found[0]).splitlines()[0]) if found else ("nobody", "")
    own = [event for event in events if event["level"] == "warning" and event["kind"] not in ("note", "interrupt")]
    told = own or [event for event in events if event["level"] == "warning"]
    if cause is not None and not own:
        return f"{cause['kind']}", str(cause["message"])
    if told:
        return f"{told[0]['kind']}", str(told[0]["text"]).splitlines()[0]
    return "nobody", ""


def _events(run: Path) -> list[dict[str, Any]]:
    path = run / "events.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def _again(run: Path, *, drill: Drill, cause: dict[str, Any] | None) -> int:
    """Return how many steps were done a second time: from where the run went on to where it was broken."""
    resumed = [int(event["step"]) for event in _events(run) if event["kind"] == "resume"]
    broken = drill.step if cause is None else int(cause["step"])
    if resumed:
        return max(0, broken - resumed[0])
    return broken if cause is not None else 0


def _struck_s(mark: Path) -> float | None:
    try:
        return float(mark.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _tail(launched: Launched) -> str:
    lines = launched.output.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_KEPT_LINES:])
