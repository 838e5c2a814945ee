"""Writes every report of a run into its folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trireme.observe.jsonl import JsonlLog
from trireme.observe.observer import Watcher
from trireme.observe.report import EvalReport, Event, SampleReport, StepReport
from trireme.observe.run_folder import RunFolder
from trireme.observe.sample_book import format_entry
from trireme.words import say


class Recorder(Watcher):
    """Keeps ``log.jsonl`` (exactly one object a step), ``evals.jsonl``, ``samples.jsonl`` with
    ``samples.md``, and ``events.jsonl``.

    ``notice`` hears of trouble with the disk; give it the console's ``on_event``.
    """

    def __init__(self, folder: RunFolder, *, notice: Callable[[Event], None] = lambda event: None) -> None:
        self._steps = JsonlLog(folder.log_path, notice=notice)
        self._evals = JsonlLog(folder.evals_path, notice=notice)
        self._samples = JsonlLog(folder.samples_path, notice=notice)
        self._events = JsonlLog(folder.events_path, notice=notice)
        self._notice = notice
        self._book_path = folder.path / "samples.md"
        self._attempt = folder.state.attempts

    def on_step(self, report: StepReport) -> None:
        """Append one line for the step."""
        self._steps.write(step_fields(report))

    def on_eval(self, report: EvalReport) -> None:
        """Append one line for the evaluation."""
        self._evals.write(eval_fields(report))

    def on_sample(self, report: SampleReport) -> None:
        """Append the sample for programs and for people."""
        fields = sample_fields(report)
        self._samples.write(fields)
        try:
            with self._book_path.open("a", encoding="utf-8") as book:
                book.write(format_entry(fields))
        except OSError as error:
            text = say("observe.book_not_written", path=self._book_path, reason=error.strerror)
            self._notice(Event(kind="log_write", level="warning", text=text, step=report.step))

    def on_event(self, event: Event) -> None:
        """Append one line for the event, with the time and the attempt it belongs to."""
        self._events.write(event_fields(event) | {"attempt": self._attempt, "time": time.time()})

    def sync(self) -> None:
        """Force the logs to the disk: call it before a checkpoint is committed."""
        for log in (self._steps, self._evals, self._samples, self._events):
            log.sync()

    def close(self) -> None:
        """Close all logs; raises if lines are lost."""
        for log in (self._samples, self._events, self._evals, self._steps):
            log.close()


def step_fields(report: StepReport) -> dict[str, Any]:
    """Return the log's object for one step."""
    return {
        "kind": "step",
        "step": report.step,
        "max_steps": report.max_steps,
        "loss": report.loss,
        "grad_norm": report.grad_norm,
        "lr": report.lr,
        "tokens": report.tokens,
        "step_tokens": report.step_tokens,
        "real_tokens": report.real_tokens,
        "target_tokens": report.target_tokens,
        "epoch": report.epoch,
        "skipped": report.skipped,
        "num_skipped": report.num_skipped,
        "loss_scale": report.loss_scale,
        "step_s": report.step_s,
        "tokens_per_s": report.tokens_per_s,
        "real_tokens_per_s": report.real_tokens_per_s,
        "target_tokens_per_s": report.target_tokens_per_s,
        "flops_per_s": report.flops_per_s,
        "mfu": report.mfu,
        "memory_bytes": report.memory_bytes,
        "sent_bytes": dict(report.sent_bytes) or None,
        "crossing_bytes": report.crossing_bytes,
        "communication_s": report.communication_s,
        "exposed_s": report.exposed_s,
        "overlap_ratio": report.overlap_ratio,
    }


def eval_fields(report: EvalReport) -> dict[str, Any]:
    """Return the log's object for one evaluation."""
    return {
        "kind": "eval",
        "step": report.step,
        "eval_loss": report.loss,
        "perplexity": report.perplexity,
        "num_seqs": report.num_seqs,
        "target_tokens": report.target_tokens,
        "is_best": report.is_best,
        "eval_s": report.eval_s,
    }


def sample_fields(report: SampleReport) -> dict[str, Any]:
    """Return the log's object for one sample."""
    return {
        "kind": "sample",
        "step": report.step,
        "prompt": report.prompt,
        "text": report.text,
        "num_tokens": report.num_tokens,
        "temperature": report.temperature,
        "seed": report.seed,
    }


def event_fields(event: Event) -> dict[str, Any]:
    """Return the log's object for one event."""
    return {
        "kind": event.kind,
        "step": event.step,
        "level": event.level,
        "text": event.text,
        "data": dict(event.data),
    }
