"""Predict every run of a table and hold the predictions against what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from trireme.errors import TriremeError
from trireme.plan.peak import MemoryTimeline, RankMemory, estimate_peak
from trireme.plan.time_data import data_spans
from trireme.plan.time_stage import build_stages
from trireme.plan.time_step import StepTime, estimate_step
from trireme.plan.time_table import rates_of, spread_of
from trireme.plan.truth_fit import brief, holds
from trireme.plan.truth_row import Row, Unreadable, measured_bytes, read_rows
from trireme.plan.truth_workload import Run, run_of

Counter = Literal["allocator", "reserved", "device"]
"""Who counted a measured peak: the allocator's live bytes, what it keeps, or the device with its context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheck:
    """One row: what is predicted, or why nothing is.

    ``truth_s`` and ``truth_bytes`` are what was measured, where it was; ``counter`` is who counted the bytes, and
    ``peak_bytes`` is predicted for that counter. ``fits`` is whether the planner would let it start.
    """

    row: Row
    skipped: str = ""
    step_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    mfu: float | None = None
    peak_bytes: int | None = None
    fits: bool | None = None
    counter: Counter = "device"
    truth_s: float | None = None
    truth_bytes: float | None = None
    assumed: tuple[str, ...] = ()
    layout_class: str = ""

    @property
    def time_error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.step_s / self.truth_s - 1 if self.step_s and self.truth_s else None

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured, less one."""
        return self.peak_bytes / self.truth_bytes - 1 if self.peak_bytes and self.truth_bytes else None

    @property
    def is_doubtful(self) -> bool:
        """Whether the table itself warns of the row."""
        return bool(self.row.text("data_warning"))

    @property
    def is_oom(self) -> bool:
        """Whether the run ran out of memory."""
        return self.row.text("outcome").upper() == "OOM"


def check_runs(text: str, *, path: str) -> list[RunCheck]:
    """Predict every row of a table of runs.

    Raises:
        ConfigError: It is no such table.
    """
    return [check_run(row) for row in read_rows(text, path=path)]


def check_run(row: Row) -> RunCheck:
    """Predict one row; what can't be predicted says why, and never stops the others."""
    try:
        run = run_of(row)
        truth_s = run.step_s
    except Unreadable as reason:
        return RunCheck(row=row, skipped=str(reason))
    try:
        return _checked(run, truth_s=truth_s)
    except TriremeError as error:
        return RunCheck(row=row, skipped=str(error))


def _checked(run: Run, *, truth_s: float | None) -> RunCheck:
    counter = counter_of(run.row)
    memory = estimate_peak(brief(run.held))
    time = _layers_only(run) if run.is_layers_only else estimate_step(run.workload)
    return RunCheck(
        row=run.row,
        step_s=time.step_s,
        low_s=time.low_s,
        high_s=time.high_s,
        mfu=time.mfu,
        peak_bytes=counted_bytes(memory, counter),
        fits=holds(memory),
        counter=counter,
        truth_s=truth_s,
        truth_bytes=measured_bytes(run.row),
        assumed=run.assumed,
        layout_class=layout_class(run),
    )


def _layers_only(run: Run) -> StepTime:
    """The time of the layers of one rank, where a source measured only them."""
    workload = run.workload
    rates = rates_of(workload)
    spans = data_spans(workload.layout, cluster=workload.cluster)
    stage = build_stages(workload, rates=rates, spans=spans, layers_only=True)[0]
    whole, spread = estimate_step(workload), spread_of(workload)
    step_s = workload.layout.num_microbatches * (stage.forward_s + stage.backward_s)
    return StepTime(
        step_s=step_s,
        low_s=step_s * spread.low,
        high_s=step_s * spread.high,
        parts={"layers": step_s},
        bubble_ratio=0.0,
        mfu=whole.mfu,
        hfu=whole.hfu,
        formula=whole.formula,
        tokens_per_s=workload.step_tokens / step_s,
        is_calibrated=whole.is_calibrated,
    )


def counter_of(row: Row) -> Counter:
    """Say who counted a row's peak; where nobody says, the device."""
    kind = row.text("mem_kind").lower()
    if not kind or "smi" in kind.split("(")[0] or "tool not stated" in kind:
        return "device"
    return "reserved" if "reserved" in kind.partition("(")[2].partition("allocated")[0] else "allocator"


def counted_bytes(memory: MemoryTimeline, counter: Counter) -> int:
    """Give the predicted peak as that counter would show it."""

    def of(rank: RankMemory) -> int:
        if counter == "allocator":
            return rank.allocated_bytes
        return rank.allocated_bytes + rank.reserved_bytes if counter == "reserved" else rank.device_bytes

    return max(of(rank) for rank in memory.ranks)


def layout_class(run: Run) -> str:
    """Name the kinds of parallelism at work, for tables of errors."""
    layout = run.workload.layout
    names = [name for name, degree in (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp), ("ep", layout.ep))]
    used = [name for name in names if getattr(layout, name) > 1]
    if layout.dp > 1:
        used.append(f"zero{layout.zero}" if layout.zero else "dp")
    return "+".join(used) or "one rank"


def row_json(check: RunCheck) -> Mapping[str, Any]:
    """Give a row as the report's JSON holds it."""
    if check.skipped:
        return {"id": check.row.id, "skipped": check.skipped}
    row: dict[str, Any] = {
        "id": check.row.id,
        "step_s": check.step_s,
        "step_s_low": check.low_s,
        "step_s_high": check.high_s,
        "peak_bytes": check.peak_bytes,
        "fits": check.fits,
        "mfu": check.mfu,
        "layout": check.layout_class,
    }
    if check.truth_s is not None:
        row["measured_step_s"] = check.truth_s
    if check.truth_bytes is not None:
        row["measured_bytes"] = check.truth_bytes
    if check.assumed:
        row["assumed"] = list(check.assumed)
    if check.is_doubtful:
        row["data_warning"] = check.row.text("data_warning")
    return row


def framework_word(row: Row) -> str:
    """The framework's name without versions and additions, for tables of errors."""
    return re.split(r"[ (/]", row.text("framework") or "not given")[0]


def only_predicted(checks: Sequence[RunCheck]) -> list[RunCheck]:
    """Rows that were predicted."""
    return [check for check in checks if not check.skipped]
