"""Faults made on purpose, so that what is done about them can be seen. One variable, read once, here.

``TRIREME_FAULT`` holds faults separated by ``;``, each ``NAME@key=value,key=value``: ``kill@step=5,rank=1``. Each
strikes in one attempt of a launch (``attempt``, default the first), so that it doesn't meet its own cure.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trireme.errors import ConfigError

FAULT_VARIABLE = "TRIREME_FAULT"
MARK_VARIABLE = "TRIREME_FAULT_MARK"

Moment = Literal["init", "step", "data", "gradient", "weights", "save"]

MOMENT_OF: Mapping[str, Moment] = {
    "kill": "step",
    "stop": "step",
    "slow": "step",
    "deadlock": "step",
    "raise": "step",
    "kill_at_start": "init",
    "stop_at_start": "init",
    "lost_store": "init",
    "nan": "gradient",
    "spike": "gradient",
    "bad_batch": "data",
    "bit_flip_weights": "weights",
    "kill_in_save": "save",
    "stop_in_save": "save",
}
"""Every fault, and the moment at which it strikes."""

_NUMBERS = ("step", "rank", "attempt", "seconds", "times", "seed")


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault; ``settings`` are its own numbers."""

    name: str
    step: int | None = None
    rank: int = 0
    attempt: int = 0
    settings: dict[str, float] = field(default_factory=dict)
    struck: int = 0

    @property
    def times(self) -> int:
        """How often it strikes."""
        return int(self.settings.get("times", 1))

    def __str__(self) -> str:
        """As it is written."""
        numbers = {"step": self.step, "rank": self.rank, "attempt": self.attempt, **self.settings}
        return f"{self.name}@" + ",".join(f"{key}={value:g}" for key, value in numbers.items() if value is not None)


def parse_faults(text: str) -> list[Fault]:
    """Read what stands in the variable.

    Raises:
        ConfigError: A fault or one of its keys is unknown, or a value is no number.
    """
    return [_parse(part.strip()) for part in text.split(";") if part.strip()]


def _parse(text: str) -> Fault:
    name, _, rest = text.partition("@")
    if name not in MOMENT_OF:
        raise ConfigError("launch.unknown_fault", name=name, known=", ".join(sorted(MOMENT_OF)))
    numbers: dict[str, float] = {}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        try:
            numbers[key] = float(value)
        except ValueError as error:
            raise ConfigError("launch.bad_fault", text=text, keys=", ".join(_NUMBERS)) from error
        if key not in _NUMBERS:
            raise ConfigError("launch.bad_fault", text=text, keys=", ".join(_NUMBERS))
    step = numbers.pop("step", None)
    rank, attempt = int(numbers.pop("rank", 0)), int(numbers.pop("attempt", 0))
    return Fault(name=name, step=None if step is None else int(step), rank=rank, attempt=attempt, settings=numbers)


_faults: list[Fault] | None = None
_read_from: str | None = None


def due(moment: Moment, *, step: int | None = None) -> Fault | None:
    """Return the fault that strikes this rank now, if one does; without the variable this is one look-up."""
    text = os.environ.get(FAULT_VARIABLE)
    if not text:
        return None
    return _find(text, moment, step=step)


def _find(text: str, moment: Moment, *, step: int | None) -> Fault | None:
    global _faults, _read_from
    if _faults is None or _read_from != text:
        _faults, _read_from = parse_faults(text), text
    rank = int(os.environ.get("RANK", "0") or 0)
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") or 0)
    for fault in _faults:
        here = MOMENT_OF[fault.name] == moment and fault.rank == rank and fault.attempt == attempt
        if here and fault.struck < fault.times and (fault.step is None or step is None or fault.step == step):
            fault.struck += 1
            _mark(fault)
            return fault
    return None


def _mark(fault: Fault) -> None:
    """Note when a fault struck, where somebody wants to know how soon it was found."""
    path = os.environ.get(MARK_VARIABLE)
    if path and not os.path.exists(path):
        Path(path).write_text(f"{time.time()} {fault}\n", encoding="ascii")


def strike(moment: Moment, *, step: int | None = None) -> Fault | None:
    """Do what a due fault does to the process; one that is about numbers or files is returned to be done there."""
    fault = due(moment, step=step)
    if fault is None:
        return None
    match fault.name:
        case "kill" | "kill_at_start" | "kill_in_save":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop" | "stop_at_start" | "stop_in_save":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "slow":
            time.sleep(fault.settings.get("seconds", 2.0))
        case "deadlock":
            time.sleep(fault.settings.get("seconds", 3600.0))
        case "raise":
            raise RuntimeError(str(fault))
        case _:
            return fault
    return None
