"""One attempt on one node: start its ranks, watch them, and say how it ended, with nothing left running."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trireme.supervise.entry import RankOrder
from trireme.supervise.failure import RECORD_VARIABLE, Failure, failure_of_end, first_cause, read_failure
from trireme.supervise.fork_server import Ended
from trireme.supervise.place import Meeting, News, Place
from trireme.supervise.pulse import LATER, PULSE_VARIABLE, Beat
from trireme.supervise.report import read_stacks
from trireme.supervise.starter import Starter
from trireme.supervise.watch import Patience, Verdict, Watch, pulse_path, read_beats, suspect
from trireme.words import say

_LOOK_S = 0.02
_WATCH_S = 0.2
_FOLLOW_S = 0.5
"""How long ranks may take to say why they fail, after the first did."""

_STACK_S = 1.0
_NODES_S = 3.0
"""How long another node may take to tell of its failure."""

Outcome = Literal["done", "failed", "interrupted", "changed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What every rank runs.

    Attributes:
        arguments: Of ``trireme``, or a script and its arguments; ``resumed`` those of a later attempt.
        main: See ``RankOrder``.
        is_script: Whether it is a script.
        warm: See ``RankOrder``.
        preload: What the fork server imports.
    """

    arguments: tuple[str, ...]
    resumed: tuple[str, ...]
    main: str
    is_script: bool = False
    warm: bool = True
    preload: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Wish:
    """Whether somebody asked the launch to end: set by signal handlers."""

    number: int | None = None
    at_s: float = 0.0
    at_once: bool = False


@dataclass(slots=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended on this node."""

    outcome: Outcome
    exit_code: int
    failures: list[Failure] = field(default_factory=list)
    cause: Failure | None = None
    step: int = 0
    stepped: bool = False
    settled: bool = False
    save_s: float = 0.0
    lasted_s: float = 0.0


class Attempt:
    """Runs once. ``folder`` is private to it and gone after ``close``."""

    def __init__(
        self,
        program: Program,
        *,
        place: Place,
        num_ranks: int,
        starter: Starter,
        meeting: Meeting,
        patience: Patience,
        grace_s: float,
        wish: Wish,
        environ: Mapping[str, str],
    ) -> None:
        self.program, self.place, self.starter, self.meeting = program, place, starter, meeting
        self.grace_s, self.wish = grace_s, wish
        self.folder = Path(tempfile.mkdtemp(prefix="trireme-launch-"))
        self.ranks = range(place.first_rank, place.first_rank + num_ranks)
        self._arguments = program.resumed if place.resume else program.arguments
        self._environ = environ
        self._watch = Watch(patience=patience)
        self._started_s = time.monotonic()
        self._alive: set[int] = set(self.ranks)
        self._failures: list[Failure] = []
        self._told_of_wish = False
        self._leaving: Literal["changed", "stopped"] | None = None
        self._leave_by_s = 0.0

    def run(self, *, on_look: Callable[[Mapping[int, Beat | None]], None] = lambda beats: None) -> AttemptEnd:
        """Start, watch, and clear everything away."""
        self.starter.start([self._order(rank) for rank in self.ranks])
        try:
            outcome = self._follow(on_look)
            if outcome == "failed":
                self._hear_reasons()
                self.meeting.tell(first_cause(self._failures))
        finally:
            beats = read_beats(self.folder, self.ranks)
            self.starter.clear()
        return self._end(outcome, beats)

    def close(self) -> None:
        """Remove the private folder."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _order(self, rank: int) -> RankOrder:
        place, local = self.place, rank - self.place.first_rank
        numbers = {
            "RANK": rank,
            "LOCAL_RANK": local,
            "WORLD_SIZE": place.world_size,
            "LOCAL_WORLD_SIZE": len(self.ranks),
            "GROUP_RANK": place.node,
            "MASTER_ADDR": place.address,
            "MASTER_PORT": place.port,
            "TORCHELASTIC_RESTART_COUNT": place.attempt,
            PULSE_VARIABLE: pulse_path(self.folder, rank),
            RECORD_VARIABLE: self.folder / f"rank-{rank}.failure",
        }
        if place.num_nodes == 1:
            # Ranks of one machine meet in a file of this attempt: no port to be taken, no server to be lost.
            numbers["TRIREME_STORE_FILE"] = self.folder / "store"
        return RankOrder(
            rank=rank,
            arguments=self._arguments,
            is_script=self.program.is_script,
            main=self.program.main,
            environ={**self._environ, **{name: str(value) for name, value in numbers.items()}},
            folder=str(self.folder),
            warm=self.program.warm,
        )

    def _follow(self, on_look: Callable[[Mapping[int, Beat | None]], None]) -> Outcome:
        """Return when all ranks are done, or one has failed, or something from outside ends the attempt."""
        look_s = 0.0
        while self._alive:
            ended, is_there = self.starter.poll(_LOOK_S)
            self._take(ended)
            if not is_there:
                self._failures.append(self._failure(None, kind="lost", message=say("launch.server_gone")))
            if self.wish.number is not None and (outcome := self._obey()) is not None:
                return outcome
            if self._leaving is not None and (outcome := self._leave()) is not None:
                return outcome
            if self._failures and not self._is_leaving_elsewhere():
                return "failed"
            if time.monotonic() - look_s < _WATCH_S:
                continue
            look_s = time.monotonic()
            beats = read_beats(self.folder, self.ranks)
            on_look(beats)
            verdict = self._watch.look(self._of_alive(beats), self.starter.pids)
            if verdict is not None and not self._is_ending:
                self._failures.append(self._judged(verdict))
                return "failed"
            if not self._is_ending and (outcome := self._heard(self.meeting.news())) is not None:
                return outcome
        return "interrupted" if self.wish.number is not None else self._leaving or "done"

    @property
    def _is_ending(self) -> bool:
        """Whether ranks were told to save and leave, so that how they end is no failure."""
        return self.wish.number is not None or self._leaving is not None

    def _is_leaving_elsewhere(self) -> bool:
        """Whether ranks here ended because another node had all of them save and leave."""
        news = self.meeting.news()
        if news in ("changed", "stop"):
            self._heard(news)
            return True
        return False

    def _of_alive(self, beats: Mapping[int, Beat | None]) -> dict[int, Beat | None]:
        """Leave out ranks that are done: they stand still for good."""
        return {rank: beat for rank, beat in beats.items() if rank in self._alive}

    def _heard(self, news: News | None) -> Outcome | None:
        """Fail with another node; or have ranks save and leave, where nodes come or the job ends."""
        if isinstance(news, Failure):
            self._failures.append(news)
            return "failed"
        if news is not None and self._leaving is None:
            self._leaving = "stopped" if news == "stop" else "changed"
            self._leave_by_s = time.monotonic() + self.grace_s
            self.starter.send_signal(signal.SIGTERM)
        return None

    def _leave(self) -> Outcome | None:
        self._failures.clear()
        return self._leaving if time.monotonic() > self._leave_by_s else None

    def _take(self, ended: list[Ended]) -> None:
        by_pid = {pid: rank for rank, pid in self.starter.pids.items()}
        for each in ended:
            rank = by_pid.get(each.pid)
            if rank is None or rank not in self._alive:
                continue
            self._alive.discard(rank)
            record = read_failure(self.folder / f"rank-{rank}.failure")
            beat = read_beats(self.folder, range(rank, rank + 1))[rank]
            step = beat.step if beat else 0
            failure = failure_of_end(rank=rank, status=each.status, at_s=each.at_s, step=step, record=record)
            if failure is not None:
                self._failures.append(replace(failure, host=self.meeting.host))

    def _obey(self) -> Outcome | None:
        """Pass a wish to end on to the ranks, once; and end them where they take too long."""
        assert self.wish.number is not None
        if not self._told_of_wish:
            self._told_of_wish = True
            self.meeting.finish(stop=True)
            number = signal.SIGINT if self.wish.number == signal.SIGINT else signal.SIGTERM
            self.starter.send_signal(number)
        if self.wish.at_once or time.monotonic() - self.wish.at_s > self.grace_s:
            return "interrupted"
        # Ranks that save and leave do so in their own time, whatever exit codes they leave with.
        self._failures = [failure for failure in self._failures if failure.rank is None]
        return None

    def _hear_reasons(self) -> None:
        """Give the other ranks a moment to say why they fail, so that the first reason is found."""
        deadline_s = time.monotonic() + _FOLLOW_S
        while self._alive and time.monotonic() < deadline_s:
            ended, is_there = self.starter.poll(_LOOK_S)
            self._take(ended)
            if not is_there:
                return
        self._hear_other_nodes()

    def _hear_other_nodes(self) -> None:
        """Ranks here that only lost a connection know no reason; the node that has it tells."""
        if self.place.num_nodes == 1 or any(failure.kind != "lost" for failure in self._failures):
            return
        deadline_s = time.monotonic() + _NODES_S
        while time.monotonic() < deadline_s:
            news = self.meeting.news()
            if isinstance(news, Failure):
                self._failures.append(news)
                return
            time.sleep(_LOOK_S)

    def _judged(self, verdict: Verdict) -> Failure:
        """Have the ranks show where they stand, and name the one that others wait for."""
        self.starter.ask_stacks(set(self._alive))
        deadline_s = time.monotonic() + _STACK_S
        stacks = read_stacks(self.folder, self.ranks)
        while time.monotonic() < deadline_s and not all(stacks[rank].strip() for rank in self._alive):
            time.sleep(_LOOK_S)
            stacks = read_stacks(self.folder, self.ranks)
        rank = suspect(verdict, stacks)
        return self._failure(rank, kind=verdict.kind, message=verdict.message)

    def _failure(self, rank: int | None, *, kind: Literal["hang", "init", "lost"] | str, message: str) -> Failure:
        beat = None if rank is None else read_beats(self.folder, range(rank, rank + 1))[rank]
        return Failure(
            rank=rank,
            kind=kind,  # type: ignore[arg-type]
            message=message,
            step=beat.step if beat else 0,
            at_s=time.time(),
            host=self.meeting.host,
        )

    def _end(self, outcome: Outcome, beats: Mapping[int, Beat | None]) -> AttemptEnd:
        known = [beat for beat in beats.values() if beat is not None]
        cause = first_cause(self._failures) if self._failures else None
        exit_code = 0
        if outcome == "interrupted":
            exit_code = 128 + (self.wish.number or signal.SIGTERM)
        elif cause is not None:
            exit_code = cause.exit_code
        return AttemptEnd(
            outcome=outcome,
            exit_code=exit_code,
            failures=self._failures,
            cause=cause,
            step=max((beat.step for beat in known), default=0),
            stepped=any(beat.phase in LATER for beat in known),
            settled=any(beat.settled for beat in known),
            save_s=max((beat.save_s for beat in known), default=0.0),
            lasted_s=time.monotonic() - self._started_s,
        )


def rank_environ(num_ranks: int) -> dict[str, str]:
    """Return what ranks of this node have in common; threads are shared out unless someone has decided on them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // num_ranks)), **os.environ}
