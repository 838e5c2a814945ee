"""What a forward does beside computing its result: a block that is computed again would do it twice."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import is_counting

_WATCHED_CALLS = 2
"""The first fills caches, which is no harm; the second must leave everything as it is."""
_NUMBERS = (int, float, complex, str, bytes)
_CONTAINERS = (list, dict, set)


class SideEffects:
    """Looks at a block's first calls.

    Seen are writes to buffers (and to tensors kept as attributes), numbers and texts that change, containers that grow,
    lines that are printed, and draws from the generators of Python and numpy, which recomputation can't repeat
    unless they are counted.
    """

    def __init__(self, block: nn.Module, *, path: str) -> None:
        self._block = block
        self._path = path
        self._calls = 0

    @property
    def is_due(self) -> bool:
        """Whether the next call is looked at."""
        return self._calls < _WATCHED_CALLS

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look at what happens inside.

        Raises:
            LayoutError: Something that would happen again in backward.
        """
        self._calls += 1
        is_first = self._calls == 1
        before, drawn = self._state(), _generators()
        with _printing() as printed:
            yield
        if printed:
            raise LayoutError("parallel.recompute_prints", path=self._path, line=_first_line(printed[0]))
        for key, (value, is_buffer) in self._state().items():
            old = before.get(key, (None, False))[0]
            if value != old and (is_buffer or not is_first):
                raise LayoutError("parallel.recompute_writes", path=self._path, what=key)
        if drawn != _generators() and not is_counting():  # what is counted is drawn again as it was
            raise LayoutError("parallel.recompute_draws", path=self._path)

    def _state(self) -> dict[str, tuple[Any, bool]]:
        """Note what must not change: of each value its content or how often it was written; whether it is a buffer."""
        found: dict[str, tuple[Any, bool]] = {}
        for prefix, module in self._block.named_modules():
            dot = f"{prefix}." if prefix else ""
            for name, buffer in module._buffers.items():
                if buffer is not None and not buffer.is_meta:
                    found[dot + name] = (buffer._version, True)
            for name, value in vars(module).items():
                if not name.startswith("_") and name != "training":
                    found[dot + name] = (_content(value), False)
        return found


def _content(value: Any) -> Any:
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, _CONTAINERS):
        return len(value)
    # A tensor that is put in the place of another is a result that is handed on, not a sum that goes wrong.
    return None if not isinstance(value, Tensor) else "tensor"


def _generators() -> tuple[int, int]:
    legacy: Any = np.random.get_state(legacy=False)
    return hash(random.getstate()), hash((legacy["state"]["pos"], legacy["state"]["key"].tobytes()))


class _Tee:
    """Stands in for standard output and remembers what was written."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.lines: list[str] = []

    def write(self, text: str) -> Any:
        if text.strip():
            self.lines.append(text)
        return self._out.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@contextmanager
def _printing() -> Iterator[list[str]]:
    tee = _Tee(sys.stdout)
    sys.stdout = tee
    try:
        yield tee.lines
    finally:
        sys.stdout = tee._out


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:60]
