"""Section ``offload``: what waits elsewhere than on the device that computes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from trireme.config.schema import Section, Whole


class OffloadSection(Section):
    """What waits elsewhere than on the device that computes; a bare text stands for {optimizer: text}."""

    optimizer: Literal["none", "host", "disk"] = Field(
        "none",
        description="Where the optimizer's state and fp32 copies of weights live: beside the weights, in host "
        "memory, in a scratch file on disk.",
    )
    path: str | None = Field(None, description="Folder of the scratch file, best on NVMe. Default: in the run folder.")
    activations: Literal["none", "host"] = Field(
        "none", description="Where what backward needs waits: on the device, or in host memory."
    )
    activations_min_bytes: Whole = Field(2**20, ge=1, description="Activations smaller than this stay on the device.")
    parameters: Literal["none", "host"] = Field(
        "none", description="With zero3: where a rank's shards of weights and gradients live."
    )
