"""Tests whose body runs on several ranks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from trireme.mesh import RankError, run_on_ranks

__all__ = ["RankError", "on_ranks", "run_on_ranks"]


def on_ranks(*world_sizes: int, timeout_s: float = 60.0) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Turn a test into one test per world size, its body running on every rank.

    Fixtures and parameters of the test are resolved once, pickled, and given to every rank.
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def launch(*, num_ranks: int, **arguments: Any) -> None:
            run_on_ranks(test, num_ranks, timeout_s=timeout_s, **arguments)

        keyword = inspect.Parameter("num_ranks", inspect.Parameter.KEYWORD_ONLY)
        signature = inspect.signature(test)
        others = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in signature.parameters.values()]
        launch.__signature__ = signature.replace(parameters=[keyword, *others])  # type: ignore[attr-defined]
        spread: Callable[..., None] = pytest.mark.parametrize("num_ranks", world_sizes)(launch)
        return spread

    return decorate
