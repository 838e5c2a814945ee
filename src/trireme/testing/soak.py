"""``python -m trireme.testing.soak --kills 200 --ranks 2``: kill a run again and again and see what is lost.

Ranks, all ranks at once and the process they are forked from are killed with SIGKILL at random moments: in a step,
in a save, while they start. The run must never hang, never go back behind a checkpoint that was complete, and end
with the weights of a run that nobody disturbed, bit for bit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from trireme.chaos import Launched, lay_out_tiny, same_weights, start_launch

Target = Literal["rank", "save", "start", "all", "server"]
_TARGETS: tuple[Target, ...] = ("rank", "save", "start", "all", "server")
_WEIGHTS = (50, 20, 15, 5, 10)
_STEPS_A_KILL = 10
_LIMIT_S = 90.0
"""Longer than any restart on a busy machine; what takes longer is a hang."""

_LOOK_S = 0.002


@dataclass(slots=True, kw_only=True)
class Soak:
    """What came of it."""

    kills: dict[str, int] = field(default_factory=dict)
    hangs: int = 0
    lost_committed_steps: int = 0
    back_s: list[float] = field(default_factory=list)
    exit_code: int | None = None
    equal: bool = False
    took_s: float = 0.0

    @property
    def is_good(self) -> bool:
        """Whether nothing was lost."""
        return self.equal and self.exit_code == 0 and not self.hangs and not self.lost_committed_steps


def soak(folder: Path, *, kills: int, ranks: int, seed: int = 0) -> Soak:
    """Run a tiny training under ``kills`` kills and return what came of it; ``folder`` must be empty."""
    started_s = time.monotonic()
    steps = _STEPS_A_KILL * (kills + 1)
    lay_out_tiny(folder, train={"max_steps": steps})
    whole = _launch(folder, "unbroken", ranks=ranks)
    assert whole.wait_until_over(60.0 + steps) == 0, whole.output.read_text(errors="replace")[-3000:]
    result = Soak()
    run = _launch(folder, "broken", ranks=ranks)
    try:
        _Killer(run, root=folder / "broken", result=result, seed=seed).work(kills)
        result.exit_code = run.wait_until_over(60.0 + steps)
    finally:
        run.end()
    last = f"checkpoints/step-{steps}"
    result.equal = result.exit_code == 0 and same_weights(folder / "unbroken" / last, folder / "broken" / last)
    result.took_s = time.monotonic() - started_s
    return result


def _launch(folder: Path, name: str, *, ranks: int) -> Launched:
    words = ["--nproc-per-node", str(ranks), "--max-restarts", "1000000", "--same-rank-limit", "1000000"]
    quiet = ["observe.progress=off", f"run.dir={name}"]
    return start_launch([*words, "run.yaml", *quiet], folder=folder, name=name)


class _Killer:
    def __init__(self, run: Launched, *, root: Path, result: Soak, seed: int) -> None:
        self._run, self._root, self._result = run, root, result
        self._random = random.Random(seed)

    def work(self, kills: int) -> None:
        """Kill so often, each time after the run has come back; stop at the first hang."""
        attempt = ""
        if not self._run.wait_for_step(not_of=attempt, timeout_s=_LIMIT_S):
            self._result.hangs += 1
            return
        for _ in range(kills):
            target = self._random.choices(_TARGETS, weights=_WEIGHTS)[0]
            attempt = self._strike(target)
            committed = self._newest_step()
            killed_s = time.monotonic()
            if not self._run.wait_for_step(not_of=attempt, timeout_s=_LIMIT_S):
                self._result.hangs += 1
                return
            self._result.back_s.append(time.monotonic() - killed_s)
            self._result.kills[target] = self._result.kills.get(target, 0) + 1
            self._note_lost(committed)

    def _strike(self, target: Target) -> str:
        """Wait for the moment, kill, and return the attempt that was hit."""
        if target == "start":  # have it start again first; then hit what starts
            attempt = self._run.attempt()
            self._kill(self._run.ranks())
            while not (self._run.attempt() not in ("", attempt) and self._run.ranks()):
                time.sleep(_LOOK_S)
            time.sleep(self._random.uniform(0.0, 1.0))
        else:
            self._wait_for_moment(target)
        attempt = self._run.attempt()
        if target == "server":
            self._kill([self._run.server()])
        elif target == "all":
            self._kill(self._run.ranks())
        elif ranks := self._run.ranks():
            self._kill([self._random.choice(ranks)])
        return attempt

    def _wait_for_moment(self, target: Target) -> None:
        goal = self._step() + self._random.randint(0, _STEPS_A_KILL - 4)
        deadline_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < deadline_s and self._run.process.poll() is None:
            beats = self._run.beats()
            saving = any(beat.phase == "saving" for beat in beats.values())
            if saving if target == "save" else self._step() >= goal:
                break
            time.sleep(_LOOK_S)
        if target == "save":
            time.sleep(self._random.uniform(0.0, 0.02))

    def _step(self) -> int:
        return max((beat.step for beat in self._run.beats().values()), default=0)

    def _newest_step(self) -> int:
        names = [path.name for path in (self._root / "checkpoints").glob("step-*")]
        return max((int(name.removeprefix("step-")) for name in names if name[5:].isdigit()), default=0)

    def _note_lost(self, committed: int) -> None:
        """A run that came back behind a complete checkpoint has lost what was safe."""
        lines = (self._root / "events.jsonl").read_text(encoding="utf-8").splitlines()
        resumed = [
            json.loads(line)["step"] for line in lines if '"kind": "resume"' in line or '"kind":"resume"' in line
        ]
        if committed and (not resumed or resumed[-1] < committed):
            self._result.lost_committed_steps += committed - (resumed[-1] if resumed else 0)

    def _kill(self, pids: list[Any]) -> None:
        for pid in pids:
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def main(words: list[str] | None = None) -> int:
    """Soak, print the figures, and return 0 if nothing was lost."""
    parser = argparse.ArgumentParser(prog="python -m trireme.testing.soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="kept; default: a temporary one")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="trireme-soak-") as temporary:
        folder = asked.folder or Path(temporary)
        result = soak(folder, kills=asked.kills, ranks=asked.ranks, seed=asked.seed)
    figures = asdict(result) | {"good": result.is_good}
    back_s = sorted(figures.pop("back_s")) or [0.0]
    figures["kill_to_step_s"] = {"median": round(statistics.median(back_s), 2), "longest": round(back_s[-1], 2)}
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
