"""A progress bar made of characters, as wide as asked, for terminals and for logs alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BarStyle:
    """The characters of a bar; ``parts`` are fillings of one cell from empty to full."""

    left: str
    right: str
    parts: str


BLOCKS = BarStyle(left="▕", right="▏", parts="░█")
FINE = BarStyle(left="▕", right="▏", parts=" ▏▎▍▌▋▊▉█")
ASCII = BarStyle(left="[", right="]", parts=".#")


def draw_bar(ratio: float, *, width: int, style: BarStyle = BLOCKS) -> str:
    """Return a bar of ``width`` cells between its ends, ``ratio`` (0 to 1) of it filled."""
    ratio = min(1.0, max(0.0, ratio))
    empty, full, levels = style.parts[0], style.parts[-1], len(style.parts) - 1
    filled, part = divmod(int(ratio * width * levels), levels)
    middle = style.parts[part] if filled < width and levels > 1 else ""
    cells = full * filled + middle
    return f"{style.left}{cells}{empty * (width - len(cells))}{style.right}"


def style_for(encoding: str | None) -> BarStyle:
    """Return block characters where ``encoding`` has them, else plain ASCII."""
    try:
        "▕█░▏".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS
