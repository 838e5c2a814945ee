"""What is done about a failure: one table, one function."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trireme.errors import ConfigError
from trireme.supervise.failure import OF_RANK, Failure, Kind
from trireme.words import say

Action = Literal["stop", "restart", "exclude"]

TABLE: Mapping[Kind, Action] = {
    "user": "stop",
    "memory": "stop",
    "disk": "stop",
    "diverged": "stop",
    "corrupt": "restart",
    "worker": "restart",
    "crash": "restart",
    "exit": "restart",
    "killed": "restart",
    "hang": "restart",
    "init": "restart",
    "lost": "restart",
}
"""What each kind of failure asks for, before budget and repetition are looked at."""

_UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BUDGET = re.compile(r"(\d+)(?:/(\d+(?:\.\d+)?)(s|min|h))?")
_MAX_BACKOFF_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """So many restarts in so long; ``window_s`` None: in the whole launch."""

    restarts: int
    window_s: float | None = None

    def __str__(self) -> str:
        """As it is written."""
        return str(self.restarts) if self.window_s is None else f"{self.restarts}/{self.window_s:g}s"


def parse_budget(text: str) -> Budget:
    """Read ``3/10min``, ``20/1h`` or ``3``.

    Raises:
        ConfigError: It is none of these.
    """
    found = _BUDGET.fullmatch(text.strip())
    count, number, unit = found.groups() if found else ("0", "0", "s")
    window_s = float(number) * _UNITS_S[unit] if number else None
    if window_s == 0:  # no budget written, or a window in which no two failures ever fall
        raise ConfigError("launch.bad_budget", text=text)
    return Budget(restarts=int(count), window_s=window_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do, why in a person's words, and how long to wait before."""

    action: Action
    reason: str
    wait_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class History:
    """The failures of one launch that the policy looks back on."""

    budget: Budget
    same_rank_limit: int = 2
    restarts_s: deque[float] = field(default_factory=deque)
    by_place_s: dict[str, deque[float]] = field(default_factory=dict)
    fruitless: int = 0
    """Attempts in a row that did not come to a second step."""


def decide(
    failure: Failure, *, history: History, now_s: float, place: str, can_exclude: bool, progressed: bool
) -> Decision:
    """Decide what follows from a failure, and remember it.

    Args:
        failure: The first cause.
        history: What happened before; written to.
        now_s: On any clock that goes on.
        place: What would be left out if it fails again: the node, or on one node the rank.
        can_exclude: Whether enough nodes would be left.
        progressed: Whether the attempt made steps: one that fails while it starts may need time, not haste.
    """
    history.fruitless = 0 if progressed else history.fruitless + 1
    if TABLE[failure.kind] == "stop":
        return Decision(action="stop", reason=say(f"launch.stop_{failure.kind}"))
    if failure.kind in OF_RANK and _repeats(history, place=place, now_s=now_s):
        count = history.same_rank_limit
        if can_exclude:
            return Decision(action="exclude", reason=say("launch.exclude", place=place, count=count))
        return Decision(action="stop", reason=say("launch.stop_same", place=place, count=count))
    _forget(history.restarts_s, window_s=history.budget.window_s, now_s=now_s)
    if len(history.restarts_s) >= history.budget.restarts:
        return Decision(action="stop", reason=say("launch.stop_budget", budget=history.budget))
    history.restarts_s.append(now_s)
    left = history.budget.restarts - len(history.restarts_s)
    wait_s = 0.0 if history.fruitless < 2 else min(2.0 ** (history.fruitless - 2), _MAX_BACKOFF_S)
    reason = say("launch.restart", wait_s=wait_s, left=left, budget=history.budget)
    return Decision(action="restart", reason=reason, wait_s=wait_s)


def _repeats(history: History, *, place: str, now_s: float) -> bool:
    """Note a failure of a place; whether it has now failed too often in the window."""
    times_s = history.by_place_s.setdefault(place, deque())
    times_s.append(now_s)
    _forget(times_s, window_s=history.budget.window_s, now_s=now_s)
    return bool(history.budget.restarts) and len(times_s) >= history.same_rank_limit


def _forget(times_s: deque[float], *, window_s: float | None, now_s: float) -> None:
    while window_s is not None and times_s and now_s - times_s[0] > window_s:
        times_s.popleft()
