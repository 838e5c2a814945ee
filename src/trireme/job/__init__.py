"""A whole run from a whole RunConfig: the one place that hands each room its section."""

from trireme.job.options import RunOptions
from trireme.job.train import run_training

__all__ = ["RunOptions", "run_training"]
