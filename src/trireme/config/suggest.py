"""The nearest thing that works, for a name nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def closest(name: str, candidates: Iterable[str], *, cutoff: float = 0.7) -> str | None:
    """Return the candidate most like ``name``, or None if none reaches ``cutoff`` (0 to 1)."""
    best, best_score = None, cutoff
    for candidate in candidates:
        score = likeness(name, candidate)
        if score > best_score or (score == best_score and best is None):
            best, best_score = candidate, score
    return best


def likeness(left: str, right: str) -> float:
    """Return how alike two names are, 0 to 1, whatever their case and kind of dash."""
    return SequenceMatcher(None, _fold(left), _fold(right)).ratio()


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
