"""The faults that a drill can make, what each needs, and what should become of it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trireme.errors import ConfigError
from trireme.supervise import MOMENT_OF, parse_faults

End = Literal["equal", "skipped", "stopped"]

WRITER_FAULTS: Mapping[str, Mapping[str, Any]] = {
    "slow_writer": {"kind": "slow", "times": 1, "seconds": 0.2},
    "failing_writer": {"kind": "fail", "times": 2},
    "full_disk": {"kind": "full", "times": 1},
    "torn_write": {"kind": "torn", "times": 1, "only": "shard-00000"},
    "writer_killed": {"kind": "die", "times": 1, "only": "shard-00000"},
    "writer_killed_at_commit": {"kind": "die_at_commit", "times": 1},
}
"""Faults of the process that writes checkpoints, as it reads them from its own variable."""

FILE_FAULTS = ("bit_flip", "truncated", "missing", "manifest_missing")
"""Damage to the newest checkpoint between a run's end and its going on."""

OUTSIDE_FAULTS = ("kill_launcher",)
"""Faults of what supervises; the run is started again as a scheduler would."""

FAULTS = (*MOMENT_OF, *WRITER_FAULTS, *FILE_FAULTS, *OUTSIDE_FAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """One fault in one run.

    Attributes:
        name: Of the fault.
        step: Where it strikes; for damage to files, where the run is killed before.
        rank: Which rank.
        seconds: How long, for what is slow.
        overrides: Settings of the run, this fault's alone.
        end: What should become of the run: ``equal`` to the unbroken one in every bit; ``skipped``: to one that left
            the step out; ``stopped`` by policy, with the checkpoint before the fault whole.
    """

    name: str
    step: int
    rank: int = 0
    seconds: float = 1.0
    overrides: tuple[str, ...] = ()
    end: End = "equal"
    notes: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """As one types it after ``--fault``."""
        return f"{self.name}@step={self.step},rank={self.rank}"

    @property
    def in_process(self) -> str:
        """Return the fault as ranks read it; empty for one that is made elsewhere."""
        if self.name not in MOMENT_OF:
            return ""
        more = f",seconds={self.seconds:g}" if self.name == "slow" else ""
        at_step = "" if MOMENT_OF[self.name] == "init" else f"step={self.step},"
        return f"{self.name}@{at_step}rank={self.rank}{more}"


def parse_drill(text: str, *, max_steps: int, ranks: int, seed: int, overrides: tuple[str, ...] = ()) -> Drill:
    """Read ``NAME[@step=..,rank=..]``; what is not said is drawn by the seed.

    Raises:
        ConfigError: There is no such fault, or the step or rank lies outside the run.
    """
    name, _, rest = text.partition("@")
    if name not in FAULTS:
        raise ConfigError("chaos.unknown_fault", name=name, known=", ".join(FAULTS))
    (said,) = parse_faults(f"kill@{rest}")  # the keys are those of any fault
    draw = random.Random(seed)
    step = draw.randrange(2, max(3, max_steps)) if said.step is None else said.step
    rank = said.rank if "rank=" in rest else draw.randrange(ranks)
    if not 0 <= step < max_steps or not 0 <= rank < ranks:
        raise ConfigError("chaos.outside", text=text, max_steps=max_steps, ranks=ranks)
    end: End = "skipped" if name in ("nan", "spike") else "equal"
    return Drill(name=name, step=step, rank=rank, overrides=overrides, end=end)


def matrix() -> list[Drill]:
    """Return every fault once in a run of forty steps on two ranks that saves after each ten."""
    at_step = [
        Drill(name=name, step=33, rank=1, overrides=_NEEDS.get(name, ()))
        for name in ("kill", "stop", "deadlock", "slow", "raise", "bad_batch", "bit_flip_weights")
    ]
    at_start = [Drill(name=name, step=0, rank=1) for name in ("kill_at_start", "stop_at_start", "lost_store")]
    in_save = [Drill(name="kill_in_save", step=20, rank=rank) for rank in (0, 1)] + [
        Drill(name="stop_in_save", step=20, rank=1)
    ]
    numbers = [
        Drill(name=name, step=33, rank=1, overrides=(f"train.{key}={policy}",), end=end)
        for name, key in (("nan", "on_nonfinite"), ("spike", "on_spike"))
        for policy, end in _POLICIES
    ]
    files = [Drill(name=name, step=33) for name in FILE_FAULTS]
    writers = [Drill(name=name, step=0) for name in WRITER_FAULTS]
    return [*at_step, *at_start, *in_save, *writers, *files, *numbers, Drill(name="kill_launcher", step=33)]


_NEEDS: Mapping[str, tuple[str, ...]] = {"bit_flip_weights": ("train.replica_check_every_steps=1",)}
_POLICIES: tuple[tuple[str, End], ...] = (("skip", "skipped"), ("rollback", "skipped"), ("stop", "stopped"))
