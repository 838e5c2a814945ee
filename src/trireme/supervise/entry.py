"""Inside a rank: become a process of its own, beat, and run what was asked for."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import runpy
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trireme.supervise.failure import record_failure
from trireme.supervise.pulse import beat, open_pulse

STACK_SIGNAL = signal.SIGUSR2
"""Asks a rank for the stacks of all its threads; a handler in C answers even where Python can't."""

FLIGHT_BYTE = b"f"
"""Asks a rank over its line to the fork server for what torch's flight recorder holds."""

_PR_SET_PDEATHSIG = 1
_BOOT = "import sys; from trireme.supervise.entry import enter; sys.exit(enter(sys.argv[1:]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """What one rank is to be.

    Attributes:
        rank: Its place in the world.
        arguments: Of ``trireme``; or a script's path and its arguments.
        is_script: Which of the two.
        main: ``package.module:function`` that takes Trireme's arguments and returns the exit code.
        environ: All of its environment.
        folder: Private files of the attempt; stacks and flight records go there.
        warm: Fork from what is imported already, rather than start an interpreter.
    """

    rank: int
    arguments: tuple[str, ...]
    is_script: bool
    main: str
    environ: dict[str, str]
    folder: str
    warm: bool = True

    @property
    def stack_path(self) -> Path:
        """Where its stacks go."""
        return Path(self.folder) / f"rank-{self.rank}.stack"

    @property
    def flight_path(self) -> Path:
        """Where its flight record goes."""
        return Path(self.folder) / f"rank-{self.rank}.flight"


def leave_parent(order: RankOrder) -> None:
    """Right after the fork: a session of its own, ordinary signals, no input, dead with its parent."""
    os.setsid()  # a session of its own, so that whatever it starts can be found and ended with it
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


def run_forked(order: RankOrder, *, line: int) -> int:
    """Run a rank in a process forked from the warm server and return its exit code."""
    os.environ.clear()
    os.environ.update(order.environ)
    _reseed()
    code = run_order(order, line=line)
    # What an interpreter does on its way out, without going back through the server's frames.
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    flush()
    return code


def run_order(order: RankOrder, *, line: int) -> int:
    """Beat, listen, run; returns the exit code."""
    open_pulse()
    stacks = open(order.stack_path, "w")  # noqa: SIM115  # open for as long as the process lives
    faulthandler.enable(file=stacks)
    faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    threading.Thread(target=_listen, args=(line, order.flight_path), daemon=True, name="trireme-line").start()
    if order.is_script:
        beat("script")
        return _run_script(order.arguments)
    module, _, name = order.main.partition(":")
    sys.argv = ["trireme", *order.arguments]
    code: int = getattr(importlib.import_module(module), name)(list(order.arguments))
    return code


def flush() -> None:
    """Let nothing that was printed be lost."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _run_script(arguments: tuple[str, ...]) -> int:
    """Run a script as ``python script.py ...`` would, and write down why it fails."""
    path = arguments[0]
    sys.argv = list(arguments)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as leave:
        return _code_of(leave)
    except BaseException as error:
        record_failure(error, exit_code=1)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _code_of(leave: SystemExit) -> int:
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    sys.stderr.write(f"{leave.code}\n")
    return 1


def _listen(line: int, flight_path: Path) -> None:
    """Answer the server; when its end of the line closes, it is gone, and so is this rank with all it started."""
    while True:
        try:
            word = os.read(line, 1)
        except OSError:
            word = b""
        if not word:
            os.killpg(0, signal.SIGKILL)
        if word == FLIGHT_BYTE:
            _write_flight(flight_path)


def _write_flight(path: Path) -> None:
    """Keep what torch recorded of collectives, if torch is there and records."""
    if "torch.distributed" not in sys.modules:
        return
    with contextlib.suppress(Exception):  # a rank that hangs must not fail at telling so
        recorder = importlib.import_module("torch._C._distributed_c10d")
        path.write_bytes(recorder._dump_fr_trace_json())


def _reseed() -> None:
    """A fork has its parent's global random states; an interpreter of its own would not."""
    import random

    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def to_words(order: RankOrder, *, line: int) -> list[str]:
    """Return the command line of a rank that gets an interpreter of its own."""
    fields: dict[str, Any] = asdict(order) | {"environ": {}}
    return [sys.executable, "-c", _BOOT, str(line), json.dumps(fields)]


def enter(words: list[str]) -> int:
    """Be a rank in an interpreter of its own."""
    fields = json.loads(words[1])
    order = RankOrder(**fields | {"arguments": tuple(fields["arguments"])})
    if sys.path and sys.path[0] in ("", os.getcwd()):
        sys.path.pop(0)  # that of ``python -m``; a command has its program's folder instead
    code = run_order(order, line=int(words[0]))
    flush()
    return code
