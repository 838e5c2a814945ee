"""How many steps a run takes and which learning rate each has. Pure functions, no torch.

Steps are counted from zero here: ``lr_at(0)`` is the rate of the first update. Warm-up climbs in
equal parts and reaches the peak with its last step; the shape then begins at the peak and gives
``min_lr_ratio`` of it to the last step. A step that is skipped (not finite, loss scale too high)
uses up its data and its place in the schedule like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from trireme.config import LENGTH_KEYS, TrainSection
from trireme.errors import TrainError
from trireme.words import say

Extend = Literal["stretch", "hold"]

DEFAULT_WARMUP_RATIO = Fraction(2, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """How long a run is: planned is performed.

    ``max_samples`` is set when the run is given in epochs: the last step then takes only what is
    left, with its own token count as denominator, so each sample is used exactly ``epochs`` times.
    """

    max_steps: int
    global_batch_seqs: int
    step_tokens: int
    max_samples: int | None = None

    def seqs_at(self, step: int) -> int:
        """Return how many sequences of step ``step`` (from zero) are used."""
        if self.max_samples is None:
            return self.global_batch_seqs
        left = self.max_samples - step * self.global_batch_seqs
        return max(0, min(self.global_batch_seqs, left))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The lengths a curve is drawn over."""

    num_steps: int
    warmup_steps: int
    decay_steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate of every step, as asked; ``held`` is an older shape that a resume kept."""

    kind: str
    lr: float
    min_lr_ratio: float
    shape: Shape
    held: Shape | None = None

    @property
    def drawn(self) -> Shape:
        """The shape that decides."""
        return self.held or self.shape

    def to_json(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of it."""
        return asdict(self)


def schedule_from_json(saved: Mapping[str, Any]) -> Schedule:
    """Return the schedule a checkpoint kept."""
    held = Shape(**saved["held"]) if saved["held"] else None
    return Schedule(**{**saved, "shape": Shape(**saved["shape"]), "held": held})


def plan_steps(section: TrainSection, *, seq_len: int, samples_per_epoch: int) -> StepPlan:
    """Return the steps a run takes.

    Raises:
        TrainError: Not exactly one of max_steps, max_tokens and epochs is given.
    """
    given = [name for name in LENGTH_KEYS if getattr(section, name) is not None]
    if len(given) != 1:
        raise TrainError("train.which_length", given=", ".join(given) or "-")
    global_batch_seqs = section.global_batch_seqs
    step_tokens = global_batch_seqs * seq_len
    max_samples = None
    if section.max_steps is not None:
        max_steps = section.max_steps
    elif section.max_tokens is not None:
        max_steps = math.ceil(Fraction(section.max_tokens, step_tokens))
    else:
        max_samples = math.ceil(Fraction(str(section.epochs)) * samples_per_epoch)
        max_steps = math.ceil(Fraction(max_samples, global_batch_seqs))
    return StepPlan(
        max_steps=max_steps, global_batch_seqs=global_batch_seqs, step_tokens=step_tokens, max_samples=max_samples
    )


def build_schedule(
    section: TrainSection, *, plan: StepPlan, notice: Callable[[str], None] = lambda text: None
) -> Schedule:
    """Return the schedule the settings ask for; ``notice`` hears of a warm-up that outlasts the run.

    Raises:
        TrainError: Warm-up is given both in steps and in tokens.
    """
    warmup_steps = _warmup_steps(section, plan=plan)
    if warmup_steps > plan.max_steps:
        notice(say("train.long_warmup", warmup_steps=warmup_steps, max_steps=plan.max_steps, lr=section.lr))
    return Schedule(
        kind=section.schedule,
        lr=section.lr,
        min_lr_ratio=section.min_lr_ratio,
        shape=Shape(
            num_steps=plan.max_steps,
            warmup_steps=warmup_steps,
            decay_steps=math.ceil(Fraction(str(section.decay_ratio)) * plan.max_steps),
        ),
    )


def _warmup_steps(section: TrainSection, *, plan: StepPlan) -> int:
    if section.warmup_steps is not None and section.warmup_tokens is not None:
        raise TrainError("train.warmup_twice", steps=section.warmup_steps, tokens=section.warmup_tokens)
    if section.warmup_steps is not None:
        return section.warmup_steps
    if section.warmup_tokens is not None:
        return math.ceil(Fraction(section.warmup_tokens, plan.step_tokens))
    return math.ceil(DEFAULT_WARMUP_RATIO * plan.max_steps)


def lr_at(step: int, *, schedule: Schedule) -> float:
    """Return the learning rate of step ``step`` (from zero); past the end it stays at the last one.

    Source: linear warm-up and cosine decay as in Loshchilov and Hutter, "SGDR", 2017, section 3,
    without restarts; warmup-stable-decay as in Hu et al., "MiniCPM", 2024, section 4.
    """
    shape = schedule.drawn
    if step < shape.warmup_steps:
        return schedule.lr * (step + 1) / shape.warmup_steps
    step = min(step, shape.num_steps - 1)
    return schedule.lr * (1.0 - (1.0 - schedule.min_lr_ratio) * _decayed(step, kind=schedule.kind, shape=shape))


def _decayed(step: int, *, kind: str, shape: Shape) -> float:
    """Return how far the rate has come from the peak (0) to the floor (1)."""
    match kind:
        case "constant":
            return 0.0
        case "linear":
            return _progress(step, first=shape.warmup_steps, shape=shape)
        case "cosine":
            return (1 - math.cos(math.pi * _progress(step, first=shape.warmup_steps, shape=shape))) / 2
        case "wsd":
            # The decay takes the last decay_steps steps; the one before them is the last at the peak.
            first = max(shape.warmup_steps, shape.num_steps - shape.decay_steps) - 1
            return _progress(step, first=first, shape=shape)
    raise TrainError("train.unknown_schedule", kind=kind)


def _progress(step: int, *, first: int, shape: Shape) -> float:
    """Return 0 up to step ``first`` and 1 at the last step; a single step counts as the first."""
    return max(0, step - first) / max(1, shape.num_steps - 1 - first)


def resume_schedule(
    saved: Schedule, *, asked: Schedule, step: int, extend: Extend | None = None, new_lr: bool = False
) -> Schedule:
    """Return the schedule to go on with after ``step`` finished steps.

    Unchanged settings give ``saved``. Another length needs ``extend``: ``stretch`` redraws the
    shape over the new length, so the rate may jump here; ``hold`` keeps the old shape and, past its
    end, its last rate. Another peak, shape or floor needs ``new_lr``. A change that leaves every
    rate still to come as it was needs nothing.

    Raises:
        TrainError: Something changed without the decision it needs; the message has both rates.
    """
    if replace(saved, held=None) == asked:
        return saved
    if _rates_equal(saved, asked, step=step):
        return asked
    rates = {
        "step": step + 1,
        "old_lr": f"{lr_at(step, schedule=saved):.6g}",
        "new_lr": f"{lr_at(step, schedule=asked):.6g}",
    }
    if not new_lr and (changes := _changes(saved, asked)):
        accept = " ".join(f"--accept {name}" for name in changes)
        told = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes.items())
        raise TrainError("train.lr_changed", changes=told, accept=accept, **rates)
    if saved.shape.num_steps == asked.shape.num_steps:
        return asked
    if extend is None:
        raise TrainError(
            "train.length_changed", old_steps=saved.shape.num_steps, new_steps=asked.shape.num_steps, **rates
        )
    return asked if extend == "stretch" else replace(asked, held=saved.drawn)


def _rates_equal(saved: Schedule, asked: Schedule, *, step: int) -> bool:
    """Say whether every rate still to come is the same under both, so that nothing is to decide."""
    last = max(saved.shape.num_steps, asked.shape.num_steps)
    return all(lr_at(at, schedule=saved) == lr_at(at, schedule=asked) for at in range(step, last))


def _changes(saved: Schedule, asked: Schedule) -> dict[str, tuple[object, object]]:
    """Return old and new of what changed besides the length; lengths of warm-up and decay follow it by default."""
    pairs: dict[str, tuple[object, object]] = {
        "train.schedule": (saved.kind, asked.kind),
        "train.lr": (saved.lr, asked.lr),
        "train.min_lr_ratio": (saved.min_lr_ratio, asked.min_lr_ratio),
    }
    if saved.shape.num_steps == asked.shape.num_steps:
        pairs["train.warmup_steps"] = (saved.shape.warmup_steps, asked.shape.warmup_steps)
        pairs["train.decay_ratio"] = (saved.shape.decay_steps, asked.shape.decay_steps)
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}
