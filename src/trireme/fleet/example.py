"""A short batch that shows how a module is called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

_ROWS = 2


def short_example(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Give the first samples of a batch."""
    return {name: value[:_ROWS] if isinstance(value, Tensor) and value.ndim else value for name, value in batch.items()}
