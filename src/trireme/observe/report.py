"""What one step, one evaluation, one sample and one event are, as plain numbers.

Training makes these, observers read them; nothing flows back. A report holds Python numbers only, so
that making one is the single place where a device has to be waited for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One optimizer step, over all ranks and micro-batches.

    Units: ``loss`` is the mean over the step's trained tokens in nats; ``tokens`` counts from step 1,
    padding included; the other counts are of this step alone; ``step_s`` is the time from the end of the
    step before, without evaluation and saving; ``sent_bytes`` is what this rank sent, by axis of the layout,
    ``crossing_bytes`` the part of the gradients' that left its node; ``exposed_s`` is the part of
    ``communication_s`` (gradients and ZeRO's gathers) that nothing computed beside;
    ``offload_bytes`` is what the step moved to and from where state waits, ``offload_stall_s`` how long it could only
    wait for that.
    """

    step: int
    max_steps: int
    loss: float
    grad_norm: float
    lr: float
    tokens: int
    step_tokens: int
    real_tokens: int
    target_tokens: int
    step_s: float
    flops: float | None = None
    peak_flops_per_s: float | None = None
    memory_bytes: int | None = None
    epoch: float = 0.0
    skipped: bool = False
    num_skipped: int = 0
    loss_scale: float | None = None
    offload_bytes: int | None = None
    offload_stall_s: float | None = None
    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    crossing_bytes: int | None = None
    communication_s: float | None = None
    exposed_s: float | None = None

    @property
    def overlap_ratio(self) -> float | None:
        """Share of the time gradients travelled in which backward computed; None where nothing was timed."""
        if not self.communication_s or self.exposed_s is None:
            return None
        return 1 - self.exposed_s / self.communication_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens through the model a second, padding included."""
        return _rate(self.step_tokens, self.step_s)

    @property
    def real_tokens_per_s(self) -> float:
        """Tokens a second without padding."""
        return _rate(self.real_tokens, self.step_s)

    @property
    def target_tokens_per_s(self) -> float:
        """Trained tokens a second: those with a label."""
        return _rate(self.target_tokens, self.step_s)

    @property
    def flops_per_s(self) -> float | None:
        """Model FLOPs a second (recomputed work does not count)."""
        return None if self.flops is None else _rate(self.flops, self.step_s)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs a second over the peak, 0 to 1; None where no peak is known, or where this step disproves it.

        A peak that was measured while other programs ran is too low; a share above one is no figure to show.
        """
        if self.flops_per_s is None or not self.peak_flops_per_s:
            return None
        ratio = self.flops_per_s / self.peak_flops_per_s
        return ratio if ratio <= 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalReport:
    """One evaluation on held-out sequences; ``loss`` is the mean over their trained tokens in nats."""

    step: int
    loss: float
    num_seqs: int
    target_tokens: int
    eval_s: float
    is_best: bool = False

    @property
    def perplexity(self) -> float:
        """``exp(loss)``; infinite where that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf if self.loss == self.loss else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport:
    """A text that the model wrote while training."""

    step: int
    prompt: str
    text: str
    num_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something a person should know: what kind, a sentence in the user's language, the numbers behind it.

    ``kind`` is one word for programs (``nonfinite``, ``save``, ``resume``, ``stop``, ``log_write`` ...).
    """

    kind: str
    text: str
    step: int | None = None
    level: Literal["info", "warning"] = "info"
    data: Mapping[str, Any] = field(default_factory=dict)


def _rate(amount: float, duration_s: float) -> float:
    return amount / duration_s if duration_s > 0 else 0.0
