"""Ctrl-C and SIGTERM: the first asks for a good end, a second Ctrl-C ends at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trireme.supervise import is_supervised

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_OF_SLURM = "SLURM_JOB_ID"
"""Where Slurm runs the process, its warning before the end of the time is SIGUSR1."""


class Interrupt:
    """Whether someone asked the run to end, and by which signal."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    @property
    def requested(self) -> bool:
        """Whether to end after the current step."""
        return self.signal_number is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process ended by that signal."""
        return 0 if self.signal_number is None else 128 + self.signal_number


@contextmanager
def catch_interrupts(*, notice: Callable[[], None]) -> Iterator[Interrupt]:
    """Yield an Interrupt that the first signal sets; ``notice`` is called then.

    Under a supervisor a second signal changes nothing: the same one may come from it and from a scheduler, and the
    supervisor ends at once whoever has to.

    Outside the main thread Python delivers no signals: the Interrupt is then never set.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if interrupt.requested:
            if is_supervised():
                return
            raise KeyboardInterrupt
        interrupt.signal_number = number
        notice()

    numbers = (*_SIGNALS, signal.SIGUSR1) if _OF_SLURM in os.environ else _SIGNALS
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
