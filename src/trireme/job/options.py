"""What a person decides beside the settings: start or go on, and what may differ when going on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trireme.config import LENGTH_KEYS, TrainSection
from trireme.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How one attempt at a run begins.

    ``extend`` says what happens to the learning rate if the run's length changes; ``accept`` names keys
    whose new value is wanted although the run so far was made with another; ``allow_missing`` names state
    that a resume may give up. ``command`` is what a person would type to start the run; None where no command
    does, because it trains an object of a Python program.
    """

    resume: bool = False
    overwrite: bool = False
    extend: Literal["stretch", "hold"] | None = None
    accept: frozenset[str] = frozenset()
    allow_missing: frozenset[str] = frozenset()
    command: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse options that say nothing together.

        Raises:
            ConfigError: A run is both to go on and to go; or something about going on is said of a new run.
        """
        if self.resume and self.overwrite:
            raise ConfigError("job.resume_or_overwrite")
        idle = [name for name in ("extend", "accept", "allow_missing") if getattr(self, name) and not self.resume]
        if idle:
            raise ConfigError("job.only_with_resume", options=", ".join(f"--{name.replace('_', '-')}" for name in idle))

    @property
    def go_on_command(self) -> str | None:
        """What a person types to go on."""
        return None if self.command is None else shlex.join([*self.command, "--resume"])

    def extend_command(self, train: TrainSection) -> str | None:
        """What a person types to train a finished run for as long again, in the unit its length was given in."""
        if self.command is None:
            return None
        name = next(key for key in LENGTH_KEYS if getattr(train, key) is not None)
        words = [word for word in self.command if not any(word.startswith(f"train.{key}=") for key in LENGTH_KEYS)]
        return shlex.join([*words, "--resume", f"train.{name}={2 * getattr(train, name)}", "--extend", "stretch"])


def run_dir_of(*, asked: str | None, recipe: Path | None) -> Path:
    """Return the run's folder: the one asked for, else ``runs/<name of the recipe>``."""
    if asked is not None:
        return Path(asked)
    return Path("runs") / (recipe.stem if recipe is not None else "run")
