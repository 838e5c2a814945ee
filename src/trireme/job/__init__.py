"""A whole run from a whole RunConfig: the one place that hands each room its section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trireme.job.api import load, run
from trireme.job.convert import convert_checkpoint
from trireme.job.layout import resolve_layout
from trireme.job.options import RunOptions, run_dir_of
from trireme.job.refit import refit_layout

if TYPE_CHECKING:
    from trireme.job.train import run_training

__all__ = [
    "RunOptions",
    "convert_checkpoint",
    "load",
    "refit_layout",
    "resolve_layout",
    "run",
    "run_dir_of",
    "run_training",
]


def __getattr__(name: str) -> object:
    """Give ``run_training`` on first use: it needs torch, and options and settings don't."""
    if name == "run_training":
        from trireme.job.train import run_training

        return run_training
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
