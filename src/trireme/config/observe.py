"""Section ``observe``: what is shown and written while training."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trireme.config.schema import Number, Section, Whole


class ObserveSection(Section):
    """What is shown and written while training. The JSONL log has every step, whatever is shown."""

    every_steps: Whole = Field(
        1, ge=1, description="Show the step line this often (token-weighted mean since the last one)."
    )
    progress: Literal["auto", "bar", "lines", "off"] = Field(
        "auto", description="bar on a terminal, lines elsewhere, or as said."
    )
    plot: bool = Field(True, description="Write loss.png at each evaluation and at the end.")
    peak_flops_per_s: Number | None = Field(
        None,
        gt=0,
        description="The device's peak for MFU. Default: from the catalogue, else measured on a CPU, else no MFU.",
    )
