"""What a person and a program see of a run: reports, run folder, logs, console, plot."""

from typing import TYPE_CHECKING

from trireme.observe.atomic import write_atomic
from trireme.observe.closing import ClosingFacts, closing_report
from trireme.observe.console import Console
from trireme.observe.environment import environment
from trireme.observe.jsonl import JsonlLog, LogCut, cut_log
from trireme.observe.observer import Observer, ObserverGroup, Watcher
from trireme.observe.opening import OpeningFacts, opening_report
from trireme.observe.recorder import Recorder
from trireme.observe.report import EvalReport, Event, SampleReport, StepReport
from trireme.observe.rows import format_rows
from trireme.observe.run_folder import RunFolder
from trireme.observe.run_state import RunState, find_runs, read_state, suggest_runs
from trireme.observe.screen import Line, Screen, visible
from trireme.observe.step_line import format_step_time
from trireme.observe.strict_json import read_jsonl
from trireme.observe.work import WorkProgress

if TYPE_CHECKING:
    from trireme.observe.plot import LossPlot

__all__ = [
    "ClosingFacts",
    "Console",
    "EvalReport",
    "Event",
    "JsonlLog",
    "Line",
    "LogCut",
    "LossPlot",
    "Observer",
    "ObserverGroup",
    "OpeningFacts",
    "Recorder",
    "RunFolder",
    "RunState",
    "SampleReport",
    "Screen",
    "StepReport",
    "Watcher",
    "WorkProgress",
    "closing_report",
    "cut_log",
    "environment",
    "find_runs",
    "format_rows",
    "format_step_time",
    "opening_report",
    "read_jsonl",
    "read_state",
    "suggest_runs",
    "visible",
    "write_atomic",
]


def __getattr__(name: str) -> object:
    """Give the plot on first use: it alone needs numpy, which verbs that only look at runs don't."""
    if name == "LossPlot":
        from trireme.observe.plot import LossPlot

        return LossPlot
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
