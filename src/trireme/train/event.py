"""What a person should hear about a step that was not an ordinary one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from trireme.observe import Event
from trireme.train.step import Stepper
from trireme.train.step_result import StepResult
from trireme.words import say


def step_events(result: StepResult, *, step: int, stepper: Stepper) -> Iterator[Event]:
    """Yield the events of one step; an ordinary one has none."""
    if result.outcome != "updated":
        yield _skipped(result, step=step, stepper=stepper)
    if result.frozen_ratios:
        shares = ", ".join(f"{name} {ratio:.0%}" for name, ratio in result.frozen_ratios.items())
        yield Event(kind="frozen", text=say("train.frozen", shares=shares), step=step, data=dict(result.frozen_ratios))


def _skipped(result: StepResult, *, step: int, stepper: Stepper) -> Event:
    counters = stepper.counters
    text = say(
        f"train.skipped_{result.outcome}",
        step=step,
        loss=result.loss,
        grad_norm=result.grad_norm,
        ids=", ".join(map(str, result.sample_ids)) or "-",
        in_row=counters.nonfinite_in_row,
        limit=stepper.max_nonfinite,
        scale=stepper.scaler.scale if stepper.scaler else 1.0,
    )
    data = {
        "sample_ids": list(result.sample_ids),
        "loss": result.loss,
        "grad_norm": result.grad_norm,
        "nonfinite_in_row": counters.nonfinite_in_row,
        "num_nonfinite": counters.num_nonfinite,
        "num_overflows": counters.num_overflows,
        "num_empty": counters.num_empty,
    }
    # An overflow is how the loss scale finds its place; the others are worth a look.
    level: Literal["info", "warning"] = "info" if result.outcome == "overflow" else "warning"
    return Event(kind=result.outcome, text=text, step=step, level=level, data=data)
