"""Which documents are held out for evaluation: decided by their text alone.

A document is held out if its 64-bit content hash is below ``fraction * 2**64``. So the choice is the same
for any order of files, any seed and any mixture, it stays when documents are added, and two copies of one
text never end up on both sides. The hash is xxh3 of the text; see ``store.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_HASHES = 1 << 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One mask a source. Shapes: each [num_documents] bool, True where the document is held out."""

    held_out: tuple[np.ndarray, ...]

    @property
    def num_held_out(self) -> int:
        """Documents held out over all sources."""
        return sum(int(mask.sum()) for mask in self.held_out)


def split_documents(hashes: Sequence[np.ndarray], *, learnable: Sequence[np.ndarray], fraction: float) -> Split:
    """Return which documents are held out.

    If the rule leaves nothing to learn on one of the two sides, the text with the smallest hash is held out
    alone, or the one with the largest is kept alone: a small corpus still gets both sides. A corpus of one
    text keeps it for training.

    Shapes:
        hashes: [num_documents] uint64 a source. learnable: the same, bool: the document has a token to learn.
    """
    candidates = np.concatenate([np.empty(0, np.uint64), *(h[ok] for h, ok in zip(hashes, learnable, strict=True))])
    below = _threshold(candidates, fraction=fraction)
    return Split(held_out=tuple(values < np.uint64(below) for values in hashes))


def _threshold(candidates: np.ndarray, *, fraction: float) -> int:
    """Return the bound on the hash that leaves both sides something to learn, if there are two texts."""
    # fraction < 1, so this is below 2**64; exact, unlike a product of floats.
    below = int(Fraction(fraction) * _HASHES)
    if fraction == 0 or len(candidates) == 0:
        return 0
    smallest, largest = int(candidates.min()), int(candidates.max())
    if smallest == largest:
        return 0
    return min(max(below, smallest + 1), largest)
