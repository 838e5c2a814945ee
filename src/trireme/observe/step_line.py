"""The line that says how training goes: numbers since the last such line, and what is left."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trireme.observe.bar import BLOCKS, BarStyle, draw_bar
from trireme.observe.report import StepReport
from trireme.units import format_bytes, format_duration, format_flops
from trireme.words import say


@dataclass(slots=True, kw_only=True)
class StepWindow:
    """The steps since the last line; what is shown is true of all of them, not of the last alone."""

    loss_sum: float = 0.0
    loss_tokens: int = 0
    step_tokens: int = 0
    real_tokens: int = 0
    target_tokens: int = 0
    duration_s: float = 0.0
    flops: float = 0.0
    num_steps: int = 0
    num_skipped: int = 0
    sent_bytes: int = 0
    communication_s: float = 0.0
    exposed_s: float = 0.0

    def add(self, report: StepReport) -> None:
        """Take one step in; a skipped step counts for time and tokens, not for the loss."""
        self.num_steps += 1
        self.num_skipped += report.skipped
        self.step_tokens += report.step_tokens
        self.real_tokens += report.real_tokens
        self.target_tokens += report.target_tokens
        self.duration_s += report.step_s
        self.flops += report.flops or 0.0
        self.sent_bytes += sum(report.sent_bytes.values())
        self.communication_s += report.communication_s or 0.0
        self.exposed_s += report.exposed_s or 0.0
        if not report.skipped:
            self.loss_sum += report.loss * report.target_tokens
            self.loss_tokens += report.target_tokens

    @property
    def loss(self) -> float:
        """Mean over the trained tokens of all steps taken in; NaN if every one was skipped."""
        return self.loss_sum / self.loss_tokens if self.loss_tokens else math.nan

    def rate(self, amount: float) -> float:
        """``amount`` a second."""
        return amount / self.duration_s if self.duration_s > 0 else 0.0


def format_place(step: int, *, max_steps: int, bar_cells: int, style: BarStyle = BLOCKS) -> str:
    """Return ``step 42/100 ▕████░░░░▏ 42%``."""
    ratio = step / max_steps if max_steps else 0.0
    bar = draw_bar(ratio, width=bar_cells, style=style)
    padded = f"{step:>{len(str(max_steps))}}"
    return say("observe.place", step=padded, max_steps=max_steps, bar=bar, percent=f"{ratio:4.0%}")


def format_numbers(window: StepWindow, *, last: StepReport) -> str:
    """Return loss, gradient norm, learning rate, the three speeds, FLOP/s, MFU and memory as one line."""
    parts = [
        f"loss {format_loss(window.loss)}",
        f"grad_norm {last.grad_norm:.3g}",
        f"lr {last.lr:.2e}",
        format_speed(window),
    ]
    if window.flops:
        parts.append(f"{format_flops(window.rate(window.flops))}/s")
    if last.peak_flops_per_s and window.flops:
        parts.append(f"MFU {window.rate(window.flops) / last.peak_flops_per_s:.1%}")
    if last.memory_bytes:
        parts.append(say("observe.memory", amount=format_bytes(last.memory_bytes)))
    if window.sent_bytes:
        parts.append(format_sent(window))
    if last.loss_scale is not None:
        parts.append(f"scale {last.loss_scale:g}")
    if last.offload_stall_s is not None:
        parts.append(say("observe.offload_wait", seconds=f"{last.offload_stall_s:.2g}"))
    if window.num_skipped:
        parts.append(say("observe.skipped", count=window.num_skipped, total=last.num_skipped))
    return "  ".join(parts)


def format_speed(window: StepWindow) -> str:
    """Return tokens a second: all, those that are no padding, those that are trained."""
    total, real, trained = (
        f"{window.rate(amount):,.0f}" for amount in (window.step_tokens, window.real_tokens, window.target_tokens)
    )
    return say("observe.speed", total=total, real=real, trained=trained)


def format_sent(window: StepWindow) -> str:
    """Return the bytes a step that this rank sent, and how long it waited for gradients where that was timed."""
    amount = format_bytes(window.sent_bytes / max(1, window.num_steps))
    if not window.communication_s:
        return say("observe.sent", amount=amount)
    exposed = format_step_time(window.exposed_s / max(1, window.num_steps))
    overlap = f"{1 - window.exposed_s / window.communication_s:.0%}"
    return say("observe.sent_timed", amount=amount, exposed=exposed, overlap=overlap)


def format_loss(loss: float) -> str:
    """Four decimals, as curves are compared; more where the loss is tiny."""
    return f"{loss:.4f}" if not math.isfinite(loss) or abs(loss) >= 0.01 else f"{loss:.3e}"


def format_step_time(duration_s: float) -> str:
    """Milliseconds below a second: steps are compared, and ``0.1s`` is not enough for that."""
    return f"{duration_s * 1000:.3g} ms" if duration_s < 1 else format_duration(duration_s)
