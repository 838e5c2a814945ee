"""Attempt after attempt, until the run is done, is stopped, or must not be tried again."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from trireme.supervise.attempt import Attempt, AttemptEnd, Program, Wish, rank_environ
from trireme.supervise.failure import Failure
from trireme.supervise.place import Alone, Meeting, MeetingLost, Place
from trireme.supervise.policy import Decision, History, decide
from trireme.supervise.pulse import Beat
from trireme.supervise.report import format_report, keep_evidence
from trireme.supervise.starter import Starter
from trireme.supervise.watch import Patience
from trireme.words import say

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_WAIT_LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a launch may do.

    Attributes:
        num_ranks: Ranks of this node.
        history: The budget, and what it was used for.
        patience: Limits of waiting.
        grace_s: How long ranks may take to save and leave after a signal.
        evidence: Where reports, stacks and flight records of failed attempts are kept.
        notice: Hears what a person should read.
    """

    num_ranks: int
    history: History
    patience: Patience = field(default_factory=Patience)
    grace_s: float = 600.0
    evidence: Path
    notice: Callable[[str], None]


Words = Callable[[Place], Program]
"""What ranks run, which may depend on how many there are."""


def supervise(words: Words, *, terms: Terms, meeting: Meeting | None = None, resume: bool = False) -> int:
    """Run a program on this node's ranks, again and again as the policy says; returns the exit code.

    ``resume``: the first attempt goes on already.
    """
    meeting = meeting or Alone()
    supervisor = _Supervisor(words, terms=terms, meeting=meeting, resume=resume)
    with ExitStack() as stack:
        stack.callback(meeting.close)
        stack.enter_context(_signals(supervisor.wish))
        stack.callback(supervisor.close)
        try:
            return supervisor.run()
        except MeetingLost as lost:
            terms.notice(str(lost))
            return 1


class _Supervisor:
    def __init__(self, words: Words, *, terms: Terms, meeting: Meeting, resume: bool) -> None:
        self.words, self.terms, self.meeting = words, terms, meeting
        self.wish = Wish()
        self._settled = resume
        self._environ = _environ(terms.num_ranks)
        self._starter: Starter | None = None
        self._warned_of_grace = False

    def run(self) -> int:
        """Attempt until it is over."""
        while True:
            place = self.meeting.join(num_ranks=self.terms.num_ranks, settled=self._settled)
            if place is None:
                self.terms.notice(say("launch.complete_already"))
                return 0
            if self.wish.number is not None:
                return self._leave(128 + self.wish.number)
            end = self._attempt(place)
            code = self._judge(end, place)
            if code is not None:
                return code

    def close(self) -> None:
        """Leave no process behind."""
        if self._starter is not None:
            self._starter.close()

    def _attempt(self, place: Place) -> AttemptEnd:
        program = self.words(place)
        environ = {**self._environ, **_local_network(place)}
        if self._starter is None:
            modules = program.preload if program.warm else ()
            self._starter = Starter(modules=modules, environ=environ)
        attempt = Attempt(
            program,
            place=place,
            num_ranks=self.terms.num_ranks,
            starter=self._starter,
            meeting=self.meeting,
            patience=self.terms.patience,
            grace_s=self.terms.grace_s,
            wish=self.wish,
            environ=environ,
        )
        try:
            end = attempt.run(on_look=self._look)
            if end.outcome == "failed" and end.cause is not None and end.cause.kind != "user":  # those are said
                self._report(end, end.cause, attempt=attempt, place=place)
        finally:
            attempt.close()
        self._settled = place.resume or end.settled
        return end

    def _look(self, beats: Mapping[int, Beat | None]) -> None:
        """Warn once where a save takes longer than ranks would be given to make one."""
        save_s = max((beat.save_s for beat in beats.values() if beat is not None), default=0.0)
        if save_s > self.terms.grace_s and not self._warned_of_grace:
            self._warned_of_grace = True
            self.terms.notice(say("launch.grace_short", save_s=save_s, grace_s=self.terms.grace_s))

    def _report(self, end: AttemptEnd, cause: Failure, *, attempt: Attempt, place: Place) -> None:
        into = self.terms.evidence / f"attempt-{place.attempt}-node-{place.node}-{int(time.time())}"
        try:
            keep_evidence(attempt.folder, into, failures=end.failures, cause=cause)
        except OSError as error:  # a full disk must not hide why the attempt failed
            self.terms.notice(say("launch.not_kept", path=into, reason=error.strerror))
        report = format_report(cause, failures=end.failures, attempt=place.attempt, lasted_s=end.lasted_s, kept=into)
        self.terms.notice(report)

    def _judge(self, end: AttemptEnd, place: Place) -> int | None:
        """Return the exit code if this was the last attempt."""
        match end.outcome:
            case "done":
                self.meeting.finish(stop=False)
                return 0
            case "interrupted":
                return self._leave(end.exit_code)
            case "stopped":
                self.terms.notice(say("launch.stopped_elsewhere"))
                return 128 + signal.SIGTERM
            case "changed":
                self.terms.notice(say("launch.nodes_changed"))
                return None
        assert end.cause is not None
        decision = self._decide(end, end.cause, place)
        if end.cause.kind != "user":
            self.terms.notice(decision.reason)
        if decision.action == "restart":
            self._wait(decision.wait_s)
            return None if self.wish.number is None else self._leave(128 + self.wish.number)
        if decision.action == "stop":
            self.meeting.finish(stop=True)
        return end.exit_code or 1

    def _decide(self, end: AttemptEnd, cause: Failure, place: Place) -> Decision:
        is_here = cause.host == self.meeting.host
        who = f"node {cause.host}" if place.num_nodes > 1 else f"rank {cause.rank}"
        decision = decide(
            cause,
            history=self.terms.history,
            now_s=time.monotonic(),
            place=who,
            can_exclude=self.meeting.can_exclude(),
            progressed=end.stepped,
        )
        if decision.action == "exclude" and not is_here:  # the others go on without that node
            return Decision(action="restart", reason=decision.reason)
        return decision

    def _leave(self, code: int) -> int:
        self.meeting.finish(stop=True)
        return code

    def _wait(self, wait_s: float) -> None:
        deadline_s = time.monotonic() + wait_s
        while time.monotonic() < deadline_s and self.wish.number is None:
            time.sleep(_WAIT_LOOK_S)


def _environ(num_ranks: int) -> dict[str, str]:
    environ = rank_environ(num_ranks)
    # What NCCL does is recorded, so that a hang can be read; the variables are torch's, and a user's own hold.
    environ.setdefault("TORCH_FR_BUFFER_SIZE", "2000")
    return environ


def _local_network(place: Place) -> dict[str, str]:
    if not place.address.startswith("127.") or sys.platform != "linux" or "GLOO_SOCKET_IFNAME" in os.environ:
        return {}
    # Ranks of one machine need no name lookup to find each other, and it can be slow.
    return {"GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def _signals(wish: Wish) -> Iterator[None]:
    """Take signals as wishes to end: the first lets ranks save, a second ends them at once."""

    def take(number: int, _frame: FrameType | None) -> None:
        if wish.number is None:
            wish.number, wish.at_s = number, time.monotonic()
        elif time.monotonic() - wish.at_s > 1.0 or number == signal.SIGINT:
            wish.at_once = True  # some schedulers send the same signal twice in a moment

    before = {number: signal.signal(number, take) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
