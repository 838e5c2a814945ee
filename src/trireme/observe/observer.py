"""What watches a run, and how several watchers are one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from trireme.observe.report import EvalReport, Event, SampleReport, StepReport


class Observer(Protocol):
    """Reads reports; never writes back. ``close`` is called once, however the run ends."""

    def on_step(self, report: StepReport) -> None: ...

    def on_eval(self, report: EvalReport) -> None: ...

    def on_sample(self, report: SampleReport) -> None: ...

    def on_event(self, event: Event) -> None: ...

    def close(self) -> None: ...


class Watcher:
    """An observer that ignores everything; subclass it and write only the methods you need."""

    def on_step(self, report: StepReport) -> None:
        """Do nothing."""

    def on_eval(self, report: EvalReport) -> None:
        """Do nothing."""

    def on_sample(self, report: SampleReport) -> None:
        """Do nothing."""

    def on_event(self, event: Event) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class ObserverGroup:
    """Passes every report to each observer, in the order given."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self.observers = tuple(observers)

    def on_step(self, report: StepReport) -> None:
        """Pass one step on."""
        for observer in self.observers:
            observer.on_step(report)

    def on_eval(self, report: EvalReport) -> None:
        """Pass one evaluation on."""
        for observer in self.observers:
            observer.on_eval(report)

    def on_sample(self, report: SampleReport) -> None:
        """Pass one sample on."""
        for observer in self.observers:
            observer.on_sample(report)

    def on_event(self, event: Event) -> None:
        """Pass one event on."""
        for observer in self.observers:
            observer.on_event(event)

    def close(self) -> None:
        """Close each observer, the later ones also when an earlier one fails; the first error is raised."""
        errors: list[Exception] = []
        for observer in self.observers:
            try:
                observer.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
