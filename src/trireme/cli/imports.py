"""Imports that Ctrl-C must not cut in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def whole_imports() -> Iterator[None]:
    """Have Ctrl-C end the process at once while libraries load: nothing is lost yet.

    Libraries written in C swallow an interrupt in the middle of loading and leave half a module behind, which
    fails much later with words that help nobody.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
