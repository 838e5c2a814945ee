"""The loss scale of fp16: gradients too small for the format are lifted into its range.

The rule is that of ``torch.amp.GradScaler`` (a test compares the two), but the scale lives on the
host: the step reads the gradient norm there anyway, the rule is then the same on every device, one
global norm decides alike on every rank, and the state is plain JSON.

Source: Micikevicius et al., "Mixed precision training", 2018, section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping

GROWTH_FACTOR = 2.0
BACKOFF_FACTOR = 0.5
MIN_SCALE = 2.0**-14
"""Below this a lower scale can't help: what isn't finite then is not the scale's doing."""


class LossScaler:
    """A loss scale that grows while gradients are finite and halves when they are not."""

    def __init__(self, *, init_scale: float = 65536.0, growth_steps: int = 2000) -> None:
        self.scale = init_scale
        self.growth_steps = growth_steps
        self.good_steps = 0
        self.num_overflows = 0

    def update(self, *, overflow: bool) -> None:
        """Take note of one update: finite, or skipped because of an overflow."""
        if overflow:
            self.scale *= BACKOFF_FACTOR
            self.good_steps = 0
            self.num_overflows += 1
            return
        self.good_steps += 1
        if self.good_steps == self.growth_steps:
            self.scale *= GROWTH_FACTOR
            self.good_steps = 0

    @property
    def exhausted(self) -> bool:
        """Whether the scale is so low that it no longer explains an overflow."""
        return self.scale < MIN_SCALE

    def to_json(self) -> dict[str, float]:
        """Return what a checkpoint keeps of it."""
        return {"scale": self.scale, "good_steps": self.good_steps, "num_overflows": self.num_overflows}

    def restore(self, saved: Mapping[str, float]) -> None:
        """Go on from a checkpoint."""
        self.scale = float(saved["scale"])
        self.good_steps = int(saved["good_steps"])
        self.num_overflows = int(saved["num_overflows"])
