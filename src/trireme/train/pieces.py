"""What a run is made of, what it hands to be saved, and how it ended: the arrows in and out of ``fit``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from trireme.checkpoint import StatePiece
from trireme.data import Batch
from trireme.observe import Observer, SampleReport
from trireme.train.cadence import Cadence
from trireme.train.callback import Callback
from trireme.train.schedule import Schedule, StepPlan
from trireme.train.step import Stepper

SaveReason = Literal["cadence", "callback", "interrupt", "end"]
FitStatus = Literal["finished", "already_finished", "stopped", "interrupted"]
OpenLoader = Callable[[int, int], AbstractContextManager[Iterable[Batch]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a checkpoint is made of.

    ``pieces`` say where each of ``tensors`` lies in the whole; on one device they are the whole. All are the live
    ones: write or copy them before returning.
    """

    step: int
    reason: SaveReason
    tensors: Mapping[str, torch.Tensor]
    pieces: Mapping[str, StatePiece]
    state: Mapping[str, Any]
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What a run is made of, all built.

    ``open_loader(first, last)`` yields the batches of steps first..last-1 (from zero), once closed
    nothing of it is left. ``eval_batches()`` yields the held-out batches, the same at each call.
    ``sample(step)`` yields texts the model wrote. ``save(snapshot)`` returns when it has a copy, or False if
    there will be no checkpoint and the run may go on; ``settle(wait)`` tells the steps whose checkpoints became
    durable since it was last asked, with ``wait`` all that were begun; without it ``save`` returns when the
    checkpoint is durable. ``save_interval()`` is how many steps lie between saves, where that is measured and not
    set. ``data_state(step)`` is the position in the data after ``step`` steps, as JSON; ``check_data_state`` raises
    if a saved one belongs to other data. ``left_out`` are steps whose samples are not learned from.
    """

    stepper: Stepper
    plan: StepPlan
    schedule: Schedule
    cadence: Cadence
    seed: int
    open_loader: OpenLoader
    samples_per_epoch: int
    eval_batches: Callable[[], Iterable[Batch]] | None = None
    sample: Callable[[int], Iterable[SampleReport]] | None = None
    save: Callable[[Snapshot], object] | None = None
    settle: Callable[[bool], Sequence[int]] | None = None
    save_interval: Callable[[], int | None] = lambda: None
    data_state: Callable[[int], Mapping[str, Any]] = lambda step: {}
    check_data_state: Callable[[Mapping[str, Any]], object] = lambda state: None
    observers: tuple[Observer, ...] = ()
    callbacks: tuple[Callback, ...] = ()
    settings: Any = None
    flops_per_token: float | None = None
    peak_flops_per_s: float | None = None
    allow_missing: Collection[str] = field(default_factory=frozenset)
    left_out: Collection[int] = field(default_factory=frozenset)
    replica_check_every_steps: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FitResult:
    """How a run ended. ``exit_code`` is that of the process; 0 unless a signal ended it."""

    status: FitStatus
    step: int
    max_steps: int
    tokens: int
    best_loss: float | None
    best_step: int | None
    exit_code: int
    exact: bool
