"""What a run will do, said before it does it: model, work, optimizer, memory, time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trireme.observe.rows import format_parts, format_rows
from trireme.observe.screen import Line
from trireme.observe.step_line import format_step_time
from trireme.units import format_bytes, format_count, format_duration, format_flops
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class OpeningFacts:
    """Numbers known before step 1.

    ``param_groups`` and ``optimizer_groups`` map a name to a count of parameters, ``memory_parts`` a name to
    bytes. ``step_s`` is the expected time of a step and ``step_s_basis`` says where it comes from.
    """

    run_dir: Path
    model: str
    param_groups: Mapping[str, int]
    num_params: int
    flops_per_token: float
    flops_formula: str
    seq_len: int
    global_batch_seqs: int
    microbatch_seqs: int
    max_steps: int
    first_step: int = 0
    device: str = ""
    device_memory_bytes: int | None = None
    precision: str = ""
    precision_reason: str = ""
    optimizer: str = ""
    optimizer_groups: Mapping[str, int] = field(default_factory=dict)
    memory_parts: Mapping[str, float] = field(default_factory=dict)
    peak_flops_per_s: float | None = None
    peak_source: str = ""
    step_s: float | None = None
    step_s_basis: str = ""

    @property
    def step_tokens(self) -> int:
        """Tokens an optimizer step, padding included."""
        return self.global_batch_seqs * self.seq_len

    @property
    def total_tokens(self) -> int:
        """Tokens of the whole run, padding included."""
        return self.max_steps * self.step_tokens

    @property
    def memory_bytes(self) -> float:
        """Estimated peak memory."""
        return sum(self.memory_parts.values())


def opening_report(facts: OpeningFacts) -> list[Line]:
    """Return the report as lines, in the user's language."""
    title = say("observe.opening_title", path=facts.run_dir)
    return format_rows(title, [*_model_rows(facts), *_work_rows(facts), *_machine_rows(facts)])


def _model_rows(facts: OpeningFacts) -> Iterator[tuple[str, str]]:
    yield say("observe.row_model"), facts.model
    groups = format_parts([(name, format_count(count)) for name, count in facts.param_groups.items()])
    yield say("observe.row_params"), f"{facts.num_params:,} ({groups})" if groups else f"{facts.num_params:,}"
    yield say("observe.row_flops_per_token"), f"{format_flops(facts.flops_per_token)} = {facts.flops_formula}"


def _work_rows(facts: OpeningFacts) -> Iterator[tuple[str, str]]:
    passes = -(-facts.global_batch_seqs // facts.microbatch_seqs)
    yield (
        say("observe.row_step"),
        say(
            "observe.step_tokens",
            tokens=f"{facts.step_tokens:,}",
            seqs=facts.global_batch_seqs,
            seq_len=facts.seq_len,
            passes=passes,
            microbatch=facts.microbatch_seqs,
        ),
    )
    start = say("observe.from_step", step=facts.first_step) if facts.first_step else ""
    total = say(
        "observe.total",
        steps=f"{facts.max_steps:,}",
        tokens=format_count(facts.total_tokens),
        flops=format_flops(facts.total_tokens * facts.flops_per_token),
    )
    yield say("observe.row_total"), total + start
    if facts.optimizer:
        groups = format_parts([(name, format_count(count)) for name, count in facts.optimizer_groups.items()])
        yield say("observe.row_optimizer"), f"{facts.optimizer} ({groups})" if groups else facts.optimizer


def _machine_rows(facts: OpeningFacts) -> Iterator[tuple[str, str]]:
    if facts.device:
        memory = f", {format_bytes(facts.device_memory_bytes)}" if facts.device_memory_bytes else ""
        yield say("observe.row_device"), facts.device + memory + _peak(facts)
    if facts.precision:
        reason = f" ({facts.precision_reason})" if facts.precision_reason else ""
        yield say("observe.row_precision"), facts.precision + reason
    if facts.memory_parts:
        parts = format_parts([(name, format_bytes(size)) for name, size in facts.memory_parts.items()])
        yield say("observe.row_memory"), f"{format_bytes(facts.memory_bytes)} ({parts})"
    if facts.step_s is not None:
        left_s = facts.step_s * (facts.max_steps - facts.first_step)
        basis = f" ({facts.step_s_basis})" if facts.step_s_basis else ""
        text = say("observe.time", total=format_duration(left_s), step=format_step_time(facts.step_s))
        yield say("observe.row_time"), text + basis


def _peak(facts: OpeningFacts) -> str:
    if not facts.peak_flops_per_s:
        return say("observe.no_peak")
    peak = f"{format_flops(facts.peak_flops_per_s)}/s"
    return say("observe.peak", peak=peak, source=facts.peak_source or "observe.peak_flops_per_s")
