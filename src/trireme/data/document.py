"""What a source gives: documents, and a count of everything that did not become one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text to learn from; ``prompt`` comes before it and is read but not learned."""

    text: str
    prompt: str = ""
    where: str = ""


@dataclass(slots=True, kw_only=True)
class SourceCounts:
    """What was read and what became of it; ``records == documents + sum(dropped.values())``."""

    records: int = 0
    documents: int = 0
    characters: int = 0
    text_bytes: int = 0
    tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Records left out, by reason (a key of the catalogue page ``data``: ``drop_empty``, ``drop_not_json`` ...)."""
    first_dropped: dict[str, str] = field(default_factory=dict)
    """Where the first of each reason stands."""

    def drop(self, reason: str, *, where: str) -> None:
        """Count a record that gives no document."""
        self.records += 1
        self.dropped[reason] += 1
        self.first_dropped.setdefault(reason, where)

    def add(self, other: SourceCounts) -> None:
        """Add the counts of the block that follows."""
        for name in ("records", "documents", "characters", "text_bytes", "tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dropped.update(other.dropped)
        self.first_dropped = other.first_dropped | self.first_dropped

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = {n: getattr(self, n) for n in ("records", "documents", "characters", "text_bytes", "tokens")}
        return values | {"dropped": dict(self.dropped), "first_dropped": dict(self.first_dropped)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> SourceCounts:
        """Read what ``as_json`` wrote."""
        return cls(**{**values, "dropped": Counter(values["dropped"])})
