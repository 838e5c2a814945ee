"""What a person and a program see of a run: reports, run folder, logs, console, plot."""

from trireme.observe.jsonl import JsonlLog, LogCut, cut_log
from trireme.observe.observer import Observer, ObserverGroup, Watcher
from trireme.observe.recorder import Recorder
from trireme.observe.report import EvalReport, Event, SampleReport, StepReport
from trireme.observe.run_folder import RunFolder
from trireme.observe.run_state import RunState, find_runs, read_state, suggest_runs
from trireme.observe.strict_json import read_jsonl

__all__ = [
    "EvalReport",
    "Event",
    "JsonlLog",
    "LogCut",
    "Observer",
    "ObserverGroup",
    "Recorder",
    "RunFolder",
    "RunState",
    "SampleReport",
    "StepReport",
    "Watcher",
    "cut_log",
    "find_runs",
    "read_jsonl",
    "read_state",
    "suggest_runs",
]
