"""Paddle's word for a layer that is recomputed."""

from __future__ import annotations

from typing import Any

from torch import nn

from trireme.parallel import recompute

_NAME = "_set_recompute"


def teach_modules() -> None:
    """Let every module be told ``layer._set_recompute(True)``, as code written for Paddle does.

    The method goes on torch's own base class when ``fleet.init`` is called, and not before.
    """
    if not hasattr(nn.Module, _NAME):
        setattr(nn.Module, _NAME, _set_recompute)


def _set_recompute(self: Any, mode: bool = True) -> None:
    """Recompute this layer's activations in backward, or keep them."""
    recompute(self, "full" if mode else "none")
