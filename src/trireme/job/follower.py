"""The run folder as ranks see it that don't lead: a place to read from, which another rank writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from trireme.observe import LogCut, RunFolder, RunState


class FollowerFolder(RunFolder):
    """Writes nothing; what it would write the leading rank does."""

    def __init__(self, path: Path, *, state: RunState) -> None:
        self.path = path
        self.state = state

    def mark(self, *, status: object = None, step: int | None = None, max_steps: int | None = None) -> None:
        """Remember how far the run came."""
        self.state = replace(self.state, step=self.state.step if step is None else step)

    def begin(self) -> None:
        """Leave the folder to the rank that leads."""

    def decide(self, name: str, compute: Callable[[], Any]) -> Any:
        """Never asked: the leading rank decides and tells."""
        raise AssertionError(name)

    def write_text(self, name: str, text: str) -> Path:
        """Return where the file will be."""
        return self.path / name

    def truncate_log(self, step: int) -> LogCut:
        """Leave the log to the rank that leads."""
        return LogCut(kept=0, dropped=0, missing=0)

    def close(self) -> None:
        """Hold nothing."""

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        """Hold nothing."""
