"""Trireme trains large models: plain PyTorch in, any parallel layout out.

``run`` trains from settings, ``load`` gives a trained model back, ``Stepper`` makes the steps of a loop of your own,
``parallelize`` spreads a module over ranks (``trireme.fleet`` in Fleet's words), ``recompute`` marks modules whose
activations are computed again; a module built inside ``recorded()`` takes no memory until ``parallelize`` or
``materialise`` fills it; ``save_folder`` writes a Hugging Face folder. They load on first use: importing this is free.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trireme.interpret import materialise, recorded
    from trireme.job import load, run
    from trireme.models import save_folder
    from trireme.parallel import parallelize, recompute
    from trireme.train import Callback, Stepper

__version__ = "0.1.0"

_HOMES = {
    "Callback": "trireme.train",
    "Stepper": "trireme.train",
    "load": "trireme.job",
    "materialise": "trireme.interpret",
    "parallelize": "trireme.parallel",
    "recompute": "trireme.parallel",
    "recorded": "trireme.interpret",
    "run": "trireme.job",
    "save_folder": "trireme.models",
}

__all__ = [
    "Callback",
    "Stepper",
    "__version__",
    "load",
    "materialise",
    "parallelize",
    "recompute",
    "recorded",
    "run",
    "save_folder",
]


def __getattr__(name: str) -> object:
    """Load a public name on first use."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
