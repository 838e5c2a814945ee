"""Where a person reads: a terminal with colour and one live line at the bottom, or a plain stream of lines."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TextIO

from trireme.observe.bar import BLOCKS, FINE, BarStyle, style_for

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

Tone = Literal["plain", "title", "quiet", "good", "warning"]

_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}
_STYLES = {"plain": "", "title": "bold cyan", "quiet": "dim", "good": "green", "warning": "bold yellow"}


class Line(NamedTuple):
    """A line of a report and how it is meant."""

    text: str
    tone: Tone = "plain"


class Screen:
    """Writes lines; on a terminal in colour, and above a live line that is redrawn in place.

    A reader that goes away (``| head``) or an encoding that lacks a character never stops a run.
    """

    def __init__(self, stream: TextIO | None = None, *, mode: Literal["auto", "bar", "lines"] = "auto") -> None:
        self._stream = stream or sys.stdout
        is_terminal = bool(getattr(self._stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"
        self.has_live = mode == "bar" or (mode == "auto" and is_terminal)
        self._encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._rich = _rich_console(self._stream, force=self.has_live) if is_terminal or self.has_live else None
        self._live: Live | None = None
        self._is_open = True

    @property
    def width(self) -> int | None:
        """Cells of a line on a terminal; None in a log, where lines are as long as they are."""
        return self._rich.width if self._rich is not None else None

    @property
    def bar_style(self) -> BarStyle:
        """The finest bar that the stream can show."""
        style = style_for(self._encoding)
        return FINE if style is BLOCKS and self.has_live else style

    def write(self, text: str, *, tone: Tone = "plain") -> None:
        """Write one line, above the live lines if there are any."""
        self._guard(self._write_line, self._showable(text), tone)

    def write_lines(self, lines: Iterable[Line]) -> None:
        """Write a report."""
        for line in lines:
            self.write(line.text, tone=line.tone)

    def write_styled(self, text: str) -> None:
        """Write text that carries its own terminal colours; without a terminal it must carry none."""
        self._guard(self._write_styled, text)

    def show_live(self, *lines: str) -> None:
        """Draw the live lines anew; nothing where there is no terminal."""
        if self.has_live:
            self._guard(self._draw, [self._showable(line) for line in lines])

    def end_live(self) -> None:
        """Take the live lines away and give the cursor back."""
        live, self._live = self._live, None
        if live is not None:
            self._guard(live.stop)

    def _guard(self, action: Callable[..., None], *args: Any) -> None:
        if not self._is_open:
            return
        try:
            action(*args)
        except (OSError, ValueError):  # the pipe is broken or the stream closed: nobody reads any more
            self._is_open = False

    def _showable(self, text: str) -> str:
        return visible(text).encode(self._encoding, "replace").decode(self._encoding)

    def _write_line(self, line: str, tone: Tone) -> None:
        if self._rich is not None:
            self._rich.print(line, style=_STYLES[tone], markup=False, highlight=False, soft_wrap=True)
        else:
            self._stream.write(line + "\n")
            self._stream.flush()

    def _write_styled(self, text: str) -> None:
        if self._rich is not None:
            from rich.text import Text

            self._rich.print(Text.from_ansi(text), soft_wrap=True)
        else:
            self._write_line(text.encode(self._encoding, "replace").decode(self._encoding), "plain")

    def _draw(self, lines: list[str]) -> None:
        from rich.console import Group
        from rich.live import Live
        from rich.text import Text

        first = Text(lines[0], style="cyan", no_wrap=True, overflow="ellipsis")
        rest = [Text(line) for line in lines[1:]]
        if self._live is None:
            self._live = Live(console=self._rich, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(first, *rest), refresh=True)


def visible(text: str) -> str:
    """Return ``text`` with control characters spelled out: a model or a file must not steer a terminal."""
    if text.isprintable():
        return text
    return "".join(_spell(char) if unicodedata.category(char) in _UNSEEN and char != "\t" else char for char in text)


def _spell(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _rich_console(stream: TextIO, *, force: bool) -> Console:
    from rich.console import Console

    return Console(file=stream, force_terminal=force or None, highlight=False, markup=False, emoji=False)
