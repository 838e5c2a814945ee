"""What a run did, where it is, and what to type next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from trireme.observe.rows import format_parts, format_rows
from trireme.observe.screen import Line
from trireme.observe.step_line import format_loss, format_step_time
from trireme.units import format_bytes, format_count, format_duration
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosingFacts:
    """Numbers known after the last step of this attempt; what is None is left out.

    ``tokens`` and ``duration_s`` are of this attempt alone; where nothing was trained neither is told.
    ``resume_command`` goes on after a stop, ``extend_command`` trains a finished run further. A run of an
    object that only a Python program has can't be loaded by a command.
    """

    run_dir: Path
    outcome: Literal["finished", "already_finished", "stopped", "failed"]
    step: int
    max_steps: int
    duration_s: float
    tokens: int
    last_loss: float | None = None
    best_eval_loss: float | None = None
    best_eval_step: int | None = None
    num_skipped: int = 0
    checkpoint: Path | None = None
    plot: Path | None = None
    prompt: str = ""
    predicted_memory_bytes: float | None = None
    measured_memory_bytes: float | None = None
    predicted_step_s: float | None = None
    measured_step_s: float | None = None
    resume_command: str | None = None
    extend_command: str | None = None
    can_be_loaded: bool = True
    sent_bytes: Mapping[str, float] = field(default_factory=dict)
    crossing_bytes: float | None = None
    communication_s: float | None = None
    exposed_s: float | None = None

    @property
    def is_finished(self) -> bool:
        """Whether no step is left."""
        return self.outcome in ("finished", "already_finished")


def closing_report(facts: ClosingFacts) -> list[Line]:
    """Return the report as lines, in the user's language; the commands can be copied as they stand."""
    title = say(f"observe.outcome_{facts.outcome}", step=facts.step, max_steps=facts.max_steps)
    lines = format_rows(title, _result_rows(facts))
    commands = list(_commands(facts))
    return [*lines, *format_rows(say("observe.next_title"), commands)] if commands else lines


def _result_rows(facts: ClosingFacts) -> Iterator[tuple[str, str]]:
    if facts.tokens:
        took = say("observe.took", duration=format_duration(facts.duration_s), tokens=format_count(facts.tokens))
        yield say("observe.row_took"), took
    if facts.last_loss is not None:
        yield say("observe.row_last_loss"), format_loss(facts.last_loss)
    if facts.best_eval_loss is not None:
        best = say("observe.at_step", loss=format_loss(facts.best_eval_loss), step=facts.best_eval_step)
        yield say("observe.row_best_eval"), best
    if facts.num_skipped:
        yield say("observe.row_skipped"), str(facts.num_skipped)
    yield from _prediction_rows(facts)
    yield from _wire_rows(facts)
    if facts.checkpoint is not None:
        yield say("observe.row_checkpoint"), str(facts.checkpoint)
    if facts.plot is not None:
        yield say("observe.row_plot"), str(facts.plot)


def _prediction_rows(facts: ClosingFacts) -> Iterator[tuple[str, str]]:
    if facts.predicted_memory_bytes and facts.measured_memory_bytes:
        yield (
            say("observe.row_memory"),
            say(
                "observe.predicted_measured",
                predicted=format_bytes(facts.predicted_memory_bytes),
                measured=format_bytes(facts.measured_memory_bytes),
                ratio=f"{facts.predicted_memory_bytes / facts.measured_memory_bytes:.2f}",
            ),
        )
    if facts.predicted_step_s and facts.measured_step_s:
        yield (
            say("observe.row_step_time"),
            say(
                "observe.predicted_measured",
                predicted=format_step_time(facts.predicted_step_s),
                measured=format_step_time(facts.measured_step_s),
                ratio=f"{facts.predicted_step_s / facts.measured_step_s:.2f}",
            ),
        )


def _wire_rows(facts: ClosingFacts) -> Iterator[tuple[str, str]]:
    """What a step sent, by axis, and how much of the time it took was hidden behind computing."""
    if sum(facts.sent_bytes.values()):
        parts = [(axis, format_bytes(size)) for axis, size in facts.sent_bytes.items() if size]
        crossing = ""
        if facts.crossing_bytes is not None:
            crossing = say("observe.crossing", amount=format_bytes(facts.crossing_bytes))
        yield say("observe.row_sent"), say("observe.sent_a_step", parts=format_parts(parts)) + crossing
    if facts.communication_s and facts.exposed_s is not None:
        yield (
            say("observe.row_overlap"),
            say(
                "observe.overlap",
                total=format_step_time(facts.communication_s),
                exposed=format_step_time(facts.exposed_s),
                ratio=f"{1 - facts.exposed_s / facts.communication_s:.0%}",
            ),
        )


def _commands(facts: ClosingFacts) -> Iterator[tuple[str, str]]:
    if facts.resume_command and not facts.is_finished:
        yield say("observe.next_resume"), facts.resume_command
    if facts.checkpoint is not None and facts.can_be_loaded:
        prompt = f" --prompt {_quoted(facts.prompt)}" if facts.prompt else ""
        yield say("observe.next_generate"), f"trireme generate {_quoted(facts.run_dir)}{prompt}"
        yield say("observe.next_chat"), f"trireme chat {_quoted(facts.run_dir)}"
    if facts.extend_command and facts.is_finished:
        yield say("observe.next_extend"), facts.extend_command
    yield say("observe.next_config"), f"trireme config show {_quoted(facts.run_dir / 'config.yaml')}"


def _quoted(value: object) -> str:
    """Return ``value`` so that a shell reads it as one word; plain words and Chinese in plain quotes."""
    text = str(value)
    if text and all(char.isalnum() or char in "./_-+=:" for char in text):
        return text if text.isascii() else f'"{text}"'
    return "'" + text.replace("'", "'\"'\"'") + "'"
