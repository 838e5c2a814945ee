"""A rank's end of its writer: starts it, gives it orders, hears its answers, and starts another when it dies."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trireme.checkpoint.arena import ALIGN_BYTES, Arena
from trireme.checkpoint.order import ArenaPart, WriteOrder, order_json
from trireme.checkpoint.write import Writer
from trireme.words import say

_RESTARTS = 3
"""New writers for one order; one that kills every writer is given up."""

_SILENCE_S = 300.0
"""A writer that says nothing for so long is taken for hung: it speaks every second, but for a slow fsync."""

LEFT_TO_THE_RANK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a writer doesn't heed: it ends when its rank does."""

_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a writer says of an order: ``written``, ``committed``, ``failed``, ``note``, ``copied`` or ``done``."""

    number: int
    event: str
    text: str = ""
    path: str = ""


class WriterLink:
    """One writer process, or its successor."""

    def __init__(self, arena: Arena, *, silence_s: float = _SILENCE_S) -> None:
        self.arena = arena
        self.pending: WriteOrder | None = None
        self._silence_s = silence_s
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""
        self._heard_s = 0.0
        self._restarts = 0

    @property
    def pid(self) -> int | None:
        """Return the writer's process id, if there is one."""
        return self._process.pid if self._process is not None else None

    def warm(self) -> None:
        """Start the writer, and have it map the arena, before it is needed."""
        self._start()
        self._send(offset_bytes=0, size_bytes=0)

    def order_bytes(self, order: WriteOrder) -> int:
        """Return the room that an order takes in the arena behind its values."""
        return len(_text(order)) + ALIGN_BYTES

    def give(self, order: WriteOrder) -> None:
        """Have an order carried out; there is none on its way."""
        assert self.pending is None, "one order at a time"
        self.pending, self._restarts = order, 0
        self._send_order(order)

    def hear(self, *, wait_s: float = 0.0) -> list[Answer]:
        """Return what was answered, waiting up to ``wait_s`` for something; a dead or hung writer is replaced."""
        answers = self._read(wait_s)
        for answer in answers:
            if answer.event == "done":
                self.pending = None
        if self.pending is None:
            return answers
        if self._process is None or self._process.poll() is not None:
            return answers + self._read(0.0) + self._replace("checkpoint.writer_died")
        if time.monotonic() - self._heard_s > self._silence_s:
            self._process.kill()
            self._process.wait()
            return answers + self._replace("checkpoint.writer_hung")
        return answers

    def close(self) -> None:
        """End the writer; what it was at is given up."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                _close(pipe)
        process.kill()  # what it was told is done, or given up; it has nothing to clear up
        process.wait()

    def _start(self) -> None:
        self.close()
        arena = self.arena.descriptor
        path = os.pathsep.join(each for each in sys.path if each)
        self._rest, self._heard_s = b"", time.monotonic()
        # Ctrl-C goes to the whole terminal: from its first moment on the writer leaves it to its rank.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_RANK)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trireme.checkpoint.writer_process", str(arena), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(arena,),
                env={**os.environ, "PYTHONPATH": path},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def _send_order(self, order: WriteOrder) -> None:
        if self._process is None or self._process.poll() is not None:
            self._start()
        text = _text(order)
        start = self.arena.size_bytes - self.order_bytes(order)
        self.arena.view(start, len(text))[:] = text
        self._send(offset_bytes=start, size_bytes=len(text))

    def _send(self, *, offset_bytes: int, size_bytes: int) -> None:
        """Write one short line, which a pipe takes whole whether or not the writer listens."""
        line = {"arena_bytes": self.arena.size_bytes, "offset_bytes": offset_bytes, "size_bytes": size_bytes}
        self._heard_s = time.monotonic()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.kill()  # heard of at the next look

    def _read(self, wait_s: float) -> list[Answer]:
        if self._process is None or self._process.stdout is None:
            return []
        pipe, data = self._process.stdout.fileno(), b""
        while select.select([pipe], [], [], 0 if data else wait_s)[0]:
            part = os.read(pipe, 1 << 16)
            data += part
            if not part:
                self._reap()
                break
        if data:
            self._heard_s = time.monotonic()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [answer for line in lines if (answer := _answer(json.loads(line))) is not None]

    def _reap(self) -> None:
        """Wait for the end of a writer that closed its output: nothing else does that."""
        assert self._process is not None
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _replace(self, key: str) -> list[Answer]:
        order = self.pending
        assert order is not None
        self._restarts += 1
        if self._restarts > _RESTARTS:
            self.pending = None
            text = say("checkpoint.writers_died", count=self._restarts)
            return [Answer(number=order.number, event=event, text=text) for event in ("failed", "done")]
        self._start()
        self._send_order(order)
        return [Answer(number=order.number, event="note", text=say(key, path=order.folder))]


class InlineWriter:
    """Carries orders out at once, in this process: where there can be no other, or none is wanted."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self._number = 0
        self._writer = Writer(tell=self._tell)

    def carry_out(self, order: WriteOrder, source: Any) -> list[Answer]:
        """Return the answers to an order."""
        self._number, self._answers = order.number, []
        self._writer.carry_out(order, source)
        self._tell("done")
        return self._answers

    def _tell(self, event: str, *, text: str = "", path: str = "") -> None:
        if event != "alive":
            self._answers.append(Answer(number=self._number, event=event, text=text, path=path))


def place_parts(parts: Sequence[ArenaPart]) -> tuple[tuple[ArenaPart, ...], int]:
    """Give each block its place in the arena; returns them with where the last one ends."""
    placed, end = [], 0
    for part in parts:
        placed.append(replace(part, offset_bytes=end))
        end += -(-part.size_bytes // ALIGN_BYTES) * ALIGN_BYTES
    return tuple(placed), end


def _text(order: WriteOrder) -> bytes:
    return json.dumps(order_json(order)).encode("ascii")


def _answer(message: dict[str, Any]) -> Answer | None:
    if message["event"] in ("alive", "ready"):
        return None
    return Answer(**message)


def _close(pipe: Any) -> None:
    try:
        pipe.close()
    except BrokenPipeError:
        return
