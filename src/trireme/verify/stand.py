"""What a rank has on its bench before the module is spread: everything a fault can spoil from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trireme.plan import Coordinate, Layout, coordinate
from trireme.verify.reference import Recipe
from trireme.verify.subject import Subject


@dataclass(slots=True, kw_only=True)
class Stand:
    """The subject, this rank's parts of the batches, and how weights are updated.

    ``has_bitten``: a fault met what it breaks, on this rank.
    """

    subject: Subject
    global_batches: list[Mapping[str, Any]]
    batches: list[dict[str, Any]]
    recipe: Recipe
    layout: Layout
    rank: int
    has_bitten: bool = False

    @property
    def place(self) -> Coordinate:
        """This rank's place on every axis."""
        return coordinate(self.layout, self.rank)
