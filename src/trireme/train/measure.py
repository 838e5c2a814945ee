"""Decide by trying: which of several ways to run a step is fastest on this device.

A decision is taken once, kept in the run folder with its figures and reused by a resume, so that an
unlucky timing can't change a run's numbers half-way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from trireme.data import Batch
from trireme.mesh import synchronize
from trireme.train.microbatch import Micro, count_tokens, host_tensors, move
from trireme.train.objective import Objective, num_rows
from trireme.train.precision import Precision, can_compute
from trireme.train.rng import kept_rng

PRECISION_MARGIN = 1.1
"""bf16 costs digits; it has to win by this factor."""
MAX_TRIAL_TOKENS = 1024
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was chosen, why (one word), and the figures behind it (seconds a forward and backward)."""

    choice: str
    reason: str
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what the run folder keeps."""
        return {"choice": self.choice, "reason": self.reason, "figures": dict(self.figures)}


def decision_from_json(saved: Mapping[str, Any]) -> Decision:
    """Return the decision a run folder kept."""
    return Decision(choice=saved["choice"], reason=saved["reason"], figures=dict(saved["figures"]))


def choose_precision(
    module: nn.Module, batch: Batch | Mapping[str, Any], *, objective: Objective, device: torch.device
) -> Decision:
    """Return ``bf16`` where it is measured to gain on this model and device, else ``fp32``.

    Runs a few forwards and backwards on a part of ``batch``; weights, buffers and random state are
    left as they were.
    """
    if not can_compute(torch.bfloat16, device=device):
        return Decision(choice="fp32", reason="unsupported")
    micro = trial_batch(batch, objective=objective)
    if not micro.count:
        return Decision(choice="fp32", reason="nothing_to_learn")
    trials = {
        policy: trial(module, micro, objective=objective, precision=Precision(policy=policy, device=device))
        for policy in ("fp32", "bf16")
    }
    with undisturbed(module):
        figures = fastest_of(trials, device=device)
    gain = figures["fp32"] / figures["bf16"]
    wins = gain >= PRECISION_MARGIN
    return Decision(
        choice="bf16" if wins else "fp32",
        reason="faster" if wins else "no_gain",
        figures={
            "fp32_s": figures["fp32"],
            "bf16_s": figures["bf16"],
            "gain_ratio": gain,
            "trial_tokens": float(count_tokens(micro.tensors).step_tokens),
        },
    )


def trial_batch(batch: Batch | Mapping[str, Any], *, objective: Objective, microbatch_seqs: int | None = None) -> Micro:
    """Return a micro-batch to time: as large as in training, up to MAX_TRIAL_TOKENS."""
    tensors = host_tensors(batch)
    rows = num_rows(tensors)
    places = max(value.numel() for value in tensors.values() if isinstance(value, torch.Tensor))
    limit = max(1, MAX_TRIAL_TOKENS * rows // places)
    rows = min(rows, limit, microbatch_seqs or rows)
    part = {
        name: value[:rows] if isinstance(value, torch.Tensor) and value.dim() else value
        for name, value in tensors.items()
    }
    return Micro(tensors=part, count=objective.count(part))


def trial(module: nn.Module, micro: Micro, *, objective: Objective, precision: Precision) -> Callable[[], None]:
    """Return a function that runs one forward and backward."""
    tensors = move(micro.tensors, device=precision.device)

    def run() -> None:
        with precision.compute_context(module):
            loss = objective.evaluate(module, tensors, count=micro.count)
            torch.autograd.backward(loss.loss_sum / micro.count)

    return run


def fastest_of(
    trials: Mapping[str, Callable[[], None]], *, device: torch.device, repeats: int = REPEATS
) -> dict[str, float]:
    """Return the shortest time of each in seconds; they take turns, so a busy moment hits all alike."""
    for run in trials.values():
        run()
    times: dict[str, list[float]] = {name: [] for name in trials}
    for _ in range(repeats):
        for name, run in trials.items():
            times[name].append(timed_s(run, device=device))
    return {name: min(values) for name, values in times.items()}


def timed_s(run: Callable[[], None], *, device: torch.device) -> float:
    """Return how long ``run`` takes until the device is done."""
    synchronize(device)
    started_s = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - started_s


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Keep a module's buffers, gradients and mode and the random state as they were."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    gradients = [parameter.grad for parameter in module.parameters()]
    modes = {child: child.training for child in module.modules()}
    module.train()
    for parameter in module.parameters():
        parameter.grad = None
    try:
        with kept_rng(next(module.parameters()).device):
            yield
    finally:
        for child, training in modes.items():
            child.training = training
        with torch.no_grad():
            for buffer, old in buffers:
                buffer.copy_(old)
        for parameter, grad in zip(module.parameters(), gradients, strict=True):
            parameter.grad = grad
