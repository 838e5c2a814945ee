"""After which steps a run evaluates, writes samples and saves."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trireme.config import CheckpointSection, TrainSection

EVALUATIONS_A_RUN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Cadence:
    """Every so many steps; None: never. All of them also after the last step."""

    eval_every_steps: int | None
    sample_every_steps: int | None
    save_every_steps: int | None


def build_cadence(
    train: TrainSection, checkpoint: CheckpointSection, *, max_steps: int, has_evaluation: bool = True
) -> Cadence:
    """Return the cadence the settings ask for; samples and checkpoints come with the evaluations by default."""
    eval_every = train.eval_every_steps or math.ceil(max_steps / EVALUATIONS_A_RUN)
    return Cadence(
        eval_every_steps=eval_every if has_evaluation else None,
        sample_every_steps=train.sample_every_steps or eval_every,
        save_every_steps=checkpoint.every_steps or eval_every,
    )


def is_due(step: int, *, every_steps: int | None, max_steps: int) -> bool:
    """Say whether something happens after ``step`` finished steps."""
    return every_steps is not None and (step % every_steps == 0 or step == max_steps)
