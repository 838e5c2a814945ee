"""Error feedback: what a code left out of a gradient is added to the next one, so that nothing is ever lost.

What a step leaves counts only once the step is known to have updated the weights: the gradient of a skipped step
is dropped whole, and what was left before it must come again.

**Source**: Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Feedback:
    """What was left out so far, by name.

    Attributes:
        num_steps: Updates so far.
    """

    def __init__(self) -> None:
        self.num_steps = 0
        self._kept: dict[str, Tensor] = {}
        self._pending: dict[str, Tensor] = {}
        self._spare: dict[str, Tensor] = {}

    def add_to(self, name: str, values: Tensor) -> None:
        """Add what is left of ``name`` in place."""
        left = self._pending.get(name, self._kept.get(name))
        if left is not None:
            values.add_(left.view_as(values))

    def leave(self, name: str, values: Tensor, sent: Tensor) -> None:
        """Keep the difference between what there was and what was sent."""
        left = self._pending.get(name)
        if left is None:
            spare = self._spare.pop(name, None)
            left = torch.empty_like(values) if spare is None else spare.view_as(values)
            self._pending[name] = left
        torch.sub(values, sent, out=left)

    def keep(self, name: str, values: Tensor) -> None:
        """Keep something else that belongs to the step, such as a basis."""
        self._pending[name] = values

    def get(self, name: str) -> Tensor | None:
        """Give what was kept last."""
        return self._pending.get(name, self._kept.get(name))

    def settle(self, *, is_updated: bool) -> None:
        """Say whether the step updated the weights; if not, everything is as before it."""
        dropped = self._pending
        if is_updated:
            self.num_steps += 1
            dropped = {name: self._kept[name] for name in self._pending if name in self._kept}
            self._kept.update(self._pending)
        self._spare = dropped
        self._pending = {}

    def rescale(self, factor: float, *, except_for: str) -> None:
        """Multiply what is left, as gradients now have another scale; names with that prefix have none."""
        for name, left in self._kept.items():
            if not name.startswith(except_for):
                left.mul_(factor)

    def tensors(self) -> dict[str, Tensor]:
        """Give all that is kept."""
        return dict(self._kept)

    def restore(self, tensors: Mapping[str, Tensor], *, num_steps: int) -> None:
        """Take what ``tensors`` gave."""
        self._kept = dict(tensors)
        self._pending, self._spare = {}, {}
        self.num_steps = num_steps
