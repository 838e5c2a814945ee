"""Which settings may differ between a run and its resume, and what it means when they do.

``FREE`` leaves the numbers of the run alone, ``ROUNDING`` changes the order of sums and no more, ``SCHEDULE``
is judged by the learning rates still to come, ``ACCEPTED`` changes what is learned from here on and has to be
insisted on. Any other key makes it another run: the checkpoint's data, weights or optimizer state would not
fit, so nothing can be insisted on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trireme.config import RunConfig
from trireme.errors import ConfigError

Kind = Literal["free", "rounding", "schedule", "accepted", "fixed"]

FREE = frozenset(
    {
        "data.workers",
        "data.prefetch",
        "data.build_workers",
        "data.cache_dir",
        "data.max_empty_target_ratio",
        "model.init_from",
        "train.on_nonfinite",
        "train.max_nonfinite",
        "train.on_spike",
        "train.spike_sigmas",
        "train.rollback_leave_out_steps",
        "train.max_rollbacks",
        "train.replica_check_every_steps",
        "train.eval_every_steps",
        "train.eval_seqs",
        "train.sample_every_steps",
        "train.sample_prompts",
        "train.sample_tokens",
        "checkpoint",
        "observe",
        "precision.fallback",
        "communication.ranks_per_node",
    }
)
ROUNDING = frozenset(
    {
        "train.microbatch_seqs",
        "train.num_threads",
        "train.compile",
        "train.loss",
        "layout",
        "communication.layered",
        "communication.bucket_mib",
        "communication.reduce",
    }
)
SCHEDULE = frozenset(
    {
        "train.max_steps",
        "train.max_tokens",
        "train.epochs",
        "train.lr",
        "train.schedule",
        "train.min_lr_ratio",
        "train.warmup_steps",
        "train.warmup_tokens",
        "train.decay_ratio",
    }
)
ACCEPTED = frozenset(
    {
        "train.weight_decay",
        "train.beta1",
        "train.beta2",
        "train.eps",
        "train.clip_grad_norm",
        "model.dropout",
        "precision.loss_scale_growth_steps",
        "communication.compress",
        "communication.warmup_steps",
        "communication.powersgd_rank",
        "communication.topk_ratio",
        "communication.local_steps",
        "communication.outer",
        "communication.outer_lr",
        "communication.outer_momentum",
    }
)
PLACE = "run.dir"
"""The folder of the run, wherever it lies by now: not a change."""
RATE = SCHEDULE - {"train.max_steps", "train.max_tokens", "train.epochs"}
"""Keys of the schedule besides its length; accepting one accepts new learning rates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One key that was something else when the run began."""

    key: str
    old: Any
    new: Any

    @property
    def kind(self) -> Kind:
        """What the change does to the run."""
        section = self.key.partition(".")[0]
        if self.key in FREE or section in FREE:
            return "free"
        if self.key in ROUNDING or section in ROUNDING:
            return "rounding"
        if self.key in SCHEDULE:
            return "schedule"
        return "accepted" if self.key in ACCEPTED else "fixed"

    def __str__(self) -> str:
        return f"{self.key} {_shown(self.old)} -> {_shown(self.new)}"


def find_changes(old: RunConfig, new: RunConfig) -> list[Change]:
    """Return every key whose value differs, but for the place of the folder."""
    before, after = old.model_dump(), new.model_dump()
    return [change for change in _compare(before, after, prefix="") if change.key != PLACE]


def check_changes(changes: list[Change], *, accept: frozenset[str]) -> None:
    """Refuse changes that make it another run, and those that have to be insisted on and are not.

    Raises:
        ConfigError: A key changed that must not or is not accepted, or something is accepted for nothing.
    """
    fixed = [change for change in changes if change.kind == "fixed"]
    if fixed:
        raise ConfigError("job.changed", changes=", ".join(map(str, fixed)))
    wanted = [change for change in changes if change.kind == "accepted" and change.key not in accept]
    if wanted:
        raise ConfigError(
            "job.changed_unasked",
            changes=", ".join(map(str, wanted)),
            accept=" ".join(f"--accept {change.key}" for change in wanted),
        )
    idle = sorted(accept - {change.key for change in changes})
    if idle:
        raise ConfigError("job.accept_idle", keys=", ".join(idle))


def _compare(old: dict[str, Any], new: dict[str, Any], *, prefix: str) -> Iterator[Change]:
    for name in new:
        key, before, after = f"{prefix}{name}", old[name], new[name]
        if isinstance(before, dict) and isinstance(after, dict) and not _is_leaf(key):
            yield from _compare(before, after, prefix=f"{key}.")
        elif before != after:
            yield Change(key=key, old=before, new=after)


def _is_leaf(key: str) -> bool:
    """A value that happens to be a mapping is compared whole."""
    return key == "model.factory_args"


def _shown(value: Any, *, limit: int = 60) -> str:
    text = str(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
