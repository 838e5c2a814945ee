"""Numbers that options take."""

from __future__ import annotations

import math
from typing import Any

import click

from trireme.words import say


class FiniteRange(click.FloatRange):
    """A range that no NaN slips through, for which no comparison holds, and no infinity."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number, or refuse it."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(say("cli.takes_number"), param, ctx)
        return number
