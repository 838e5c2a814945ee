"""A module under a layout, by the room ``parallel``: what users run is what is compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trireme.errors import VerifyError
from trireme.plan import Layout
from trireme.verify.candidate import Candidate
from trireme.verify.reference import Recipe
from trireme.verify.subject import Subject


def build(subject: Subject, layout: Layout, *, example: Mapping[str, Any], recipe: Recipe) -> Candidate:
    """Spread the subject over the ranks.

    Raises:
        VerifyError: Nothing here spreads a module yet.
    """
    kind = type(subject.module).__name__
    raise VerifyError("verify.unsupported", what=kind, layout=layout)
