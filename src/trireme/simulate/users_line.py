"""The line of the user's code that is running."""

from __future__ import annotations

import sys
from types import FrameType

_INNER = ("/torch/", "/trireme/simulate/", "/trireme/parallel/", "/trireme/interpret/", "/contextlib.py")


def users_line() -> str:
    """Give the innermost line that is neither torch's nor Trireme's, or the innermost of all."""
    frame: FrameType | None = sys._getframe(1)
    first = f"{sys._getframe(1).f_code.co_filename}:{sys._getframe(1).f_lineno}"
    while frame is not None:
        if not any(part in frame.f_code.co_filename for part in _INNER):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return first
