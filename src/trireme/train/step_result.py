"""What a step did, and what a run's steps add up to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from trireme.parallel import StepTraffic, Transfers

Outcome = Literal["updated", "nonfinite", "overflow", "empty", "spike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one step did.

    ``outcome``: ``updated``; or skipped, with weights and optimizer state untouched, because loss or
    gradients were not finite (``nonfinite``) or far above those of late (``spike``), because the fp16 loss
    scale was too high (``overflow``) or because the batch has nothing to learn (``empty``).
    ``loss`` is the mean over the step's supervised tokens; ``grad_norm`` that before clipping.
    ``transfers``: what was moved for state that lives elsewhere, and the wait for it.
    ``frozen_ratios``: per parameter group the share of elements whose update rounding lost; empty
    unless the policy is bf16_pure and this update was watched. ``traffic``: what this rank sent.
    """

    loss: float
    grad_norm: float
    lr: float
    outcome: Outcome
    num_seqs: int
    step_tokens: int
    real_tokens: int
    target_tokens: int
    sample_ids: tuple[int, ...]
    step_s: float
    auxiliary: float | None = None
    loss_scale: float | None = None
    transfers: Transfers | None = None
    frozen_ratios: Mapping[str, float] = field(default_factory=dict)
    traffic: StepTraffic | None = None

    @property
    def skipped(self) -> bool:
        """Whether the weights were left alone."""
        return self.outcome != "updated"


@dataclass(slots=True, kw_only=True)
class StepCounters:
    """What a run has gone through; part of a checkpoint."""

    num_steps: int = 0
    num_nonfinite: int = 0
    nonfinite_in_row: int = 0
    num_overflows: int = 0
    num_empty: int = 0
    num_spikes: int = 0
    num_left_out: int = 0
    loss_mean: float = 0.0
    loss_var: float = 0.0
    norm_mean: float = 0.0
    norm_var: float = 0.0
    num_trended: int = 0

    @property
    def num_skipped(self) -> int:
        """Steps that left the weights alone."""
        return self.num_nonfinite + self.num_overflows + self.num_empty + self.num_spikes + self.num_left_out
