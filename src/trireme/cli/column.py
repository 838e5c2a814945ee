"""Tables in a terminal: columns as wide as their widest cell."""

from __future__ import annotations

from collections.abc import Sequence


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pad columns to the widest cell; a Chinese character takes two places."""
    width = max(len(row) for row in rows)
    widest = [max(places(row[column]) for row in rows if column < len(row)) for column in range(width)]
    return ["  ".join(cell + " " * (widest[at] - places(cell)) for at, cell in enumerate(row)).rstrip() for row in rows]


def places(text: str) -> int:
    from unicodedata import east_asian_width

    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)
