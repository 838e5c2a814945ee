"""Section ``run``: where a run lives and what makes it repeatable."""

from __future__ import annotations

from pydantic import Field

from trireme.config.schema import Section, Whole


class RunSection(Section):
    """Where a run lives and what makes it repeatable."""

    dir: str | None = Field(None, description="Run folder. Default: runs/<recipe name>.")
    seed: Whole = Field(1234, ge=0, lt=2**63, description="Decides initial weights, order of samples and dropout.")
