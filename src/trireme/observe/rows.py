"""A titled list of names and values, aligned by the cells that characters take on a screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trireme.observe.screen import Line


def format_rows(title: str, rows: Iterable[tuple[str, str]]) -> list[Line]:
    """Return the title and one line a row; names are padded to the widest, Chinese counted as two cells."""
    rows = list(rows)
    width = max((cell_width(name) for name, _ in rows), default=0)
    lines = [Line(f"  {name}{' ' * (width - cell_width(name))}  {value}") for name, value in rows]
    return [Line(title, "title"), *lines]


def format_parts(parts: Sequence[tuple[str, str]]) -> str:
    """Return ``a 1, b 2``."""
    return ", ".join(f"{name} {value}" for name, value in parts)


def cell_width(text: str) -> int:
    """Cells that ``text`` takes on a terminal."""
    from rich.cells import cell_len

    return cell_len(text)
