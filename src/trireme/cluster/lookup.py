"""From the name a driver reports to a row of the catalogue, or to none."""

from __future__ import annotations

import difflib
import re

from trireme.cluster.catalog import CATALOG, DeviceSpec

_VENDOR_WORDS = frozenset(
    {"nvidia", "tesla", "geforce", "amd", "instinct", "huawei", "ascend", "graphics", "accelerator"}
)


def find_device(name: str) -> DeviceSpec | None:
    """Return the catalogue's row for a device name as torch reports it, None where it has none.

    A word that the row doesn't know (``Laptop``, ``MIG``, ``D``) means another product with another
    peak: none is better than a wrong one.
    """
    said = _words_of(name)
    rows = [row for row in CATALOG if row.words <= said and said <= row.words | row.allowed]
    return max(rows, key=lambda row: len(row.words), default=None)


def near_devices(name: str, *, limit: int = 3) -> tuple[str, ...]:
    """Return names in the catalogue that resemble ``name``, nearest first, for messages."""
    known = {row.name.lower(): row.name for row in CATALOG}
    said = " ".join(sorted(_words_of(name)))
    scored = sorted(known, key=lambda key: _likeness(said, key), reverse=True)
    return tuple(known[key] for key in scored[:limit] if _likeness(said, key) > 0.4)


def _likeness(said: str, known: str) -> float:
    return difflib.SequenceMatcher(None, said, " ".join(sorted(_words_of(known)))).ratio()


def _words_of(name: str) -> frozenset[str]:
    # "Ascend910B2" and "A100-SXM4-80GB" are one string to their drivers, several words to us.
    spaced = re.sub(r"(?i)ascend\s*", "ascend ", name.replace("-", " ").replace("_", " ").replace("/", " "))
    spaced = re.sub(r"(?i)\b(\d+)\s+gb\b", r"\1gb", spaced)
    words = {_without_revision(word) for word in spaced.lower().split()}
    return frozenset(words - _VENDOR_WORDS)


def _without_revision(word: str) -> str:
    """``910b2`` -> ``910b``: bins of one chip that differ by a few percent in clock."""
    return re.sub(r"^(910b)\d$", r"\1", word)
