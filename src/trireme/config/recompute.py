"""Section ``recompute``: what a backward pass computes again instead of keeping it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from trireme.config.schema import AsTuple, Section, Whole


class RecomputeSection(Section):
    """What a backward pass computes again; a bare text stands for {mode: text}."""

    mode: Literal["none", "selective", "full", "auto"] | None = Field(
        None,
        description="selective keeps products with weights and computes attention, norms and activations again; full "
        "keeps a layer's input; auto recomputes just enough to fit. Default: what the layout says.",
    )
    every: Whole = Field(1, ge=1, description="Recompute in every n-th layer only, counted from the first.")
    layers: Annotated[tuple[str, ...], AsTuple] = Field(
        (), description="Only in these layers, by module path; * stands for anything."
    )
    memory_bytes: Whole | None = Field(
        None, ge=1, description="auto: what a rank may use. Default: the device's memory."
    )

    @field_validator("mode", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        """Read other tools' yes and no."""
        return {"true": "full", "false": "none"}.get(str(value).lower(), value)
