"""Where a value came from: a line of a file, the command line, a Python call, or the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trireme.words import say

Key = tuple[str | int, ...]
"""A place in the tree of settings, e.g. ``("data", "sources", 0, "path")``."""

Layer = Literal["default", "python", "file", "command line"]

_RANK: dict[Layer, int] = {"default": 0, "python": 1, "file": 2, "command line": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value came from. ``alias`` is the other tool's word that stood there, if one did."""

    layer: Layer
    file: str | None = None
    line: int | None = None
    alias: str | None = None

    @property
    def rank(self) -> int:
        """Later layers win: default < Python < file < command line."""
        return _RANK[self.layer]

    @property
    def place(self) -> str:
        """``run.yaml:12``, or the layer in the user's language."""
        if self.layer == "file":
            return f"{self.file}:{self.line}" if self.line else str(self.file)
        return say("config.from_" + self.layer.replace(" ", "_"))

    def __str__(self) -> str:
        return say("config.from_alias", place=self.place, alias=self.alias) if self.alias else self.place


DEFAULT = Origin(layer="default")


def format_key(key: Key) -> str:
    """``("data", "sources", 0)`` -> ``data.sources.0``; what no line can show is quoted."""
    dotted = ".".join(map(str, key))
    return dotted if dotted and dotted.isprintable() else repr(dotted)
