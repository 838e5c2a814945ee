"""How long work tells that it is getting on, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What a listener offers. One task at a time: start, advance any number of times, finish."""

    def start(self, label: str, total: int | None) -> None:
        """Begin a task of ``total`` units, or of unknown length."""

    def advance(self, n: int) -> None:
        """Report ``n`` more units done."""

    def finish(self) -> None:
        """End the task, whether it went well or not."""


class Silent:
    """A listener that does nothing."""

    def start(self, label: str, total: int | None) -> None:
        """Ignore the start."""

    def advance(self, n: int) -> None:
        """Ignore the step."""

    def finish(self) -> None:
        """Ignore the end."""
