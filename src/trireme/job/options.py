"""What a person decides beside the settings: start or go on, and what may differ when going on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How one attempt at a run begins.

    ``extend`` says what happens to the learning rate if the run's length changes; ``accept`` names keys
    whose new value is wanted although the run so far was made with another; ``allow_missing`` names state
    that a resume may give up. ``command`` is what a person would type to go on.
    """

    resume: bool = False
    overwrite: bool = False
    extend: Literal["stretch", "hold"] | None = None
    accept: frozenset[str] = frozenset()
    allow_missing: frozenset[str] = frozenset()
    command: str = "trireme train RUN.YAML"


def run_dir_of(*, asked: str | None, recipe: Path | None) -> Path:
    """Return the run's folder: the one asked for, else ``runs/<name of the recipe>``."""
    if asked is not None:
        return Path(asked)
    return Path("runs") / (recipe.stem if recipe is not None else "run")
