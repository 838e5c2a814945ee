"""The user's optimizer on a spread model, whenever it was built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.fleet.model import FleetModel
from trireme.parallel import ParallelOptimizer, StepOutcome, move_parameters
from trireme.train import place_state


class FleetOptimizer(torch.optim.Optimizer):
    """Unscales, clips by the true global norm, steps, and skips alike on all ranks.

    Attributes:
        optimizer: The user's own; with fp32 copies of 16-bit weights, wrapped by what keeps them.
        last: What the last step did.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, model: FleetModel, clip_grad_norm: float | None = None
    ) -> None:
        self.optimizer = optimizer
        self._model = model
        self._clip_grad_norm = clip_grad_norm
        self._spread: ParallelOptimizer | None = None
        if model.is_spread:
            self._wrap(None)
        else:
            model.when_spread(self._wrap)

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The user's groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The state by parameter."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The user's defaults."""
        return self.optimizer.defaults

    @property
    def last(self) -> StepOutcome | None:
        """What the last step did: norm before clipping, factor, whether weights moved."""
        return None if self._spread is None else self._spread.last

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the weights from the gradients of ``train_step``.

        Raises:
            LayoutError: No step has been made, so there is nothing to update from.
        """
        if self._spread is None:
            raise LayoutError("fleet.no_gradients")
        self._spread.step(closure)
        is_updated = self._spread.last is not None and self._spread.last.is_updated
        self._model.parallel.wires.settle(is_updated=is_updated)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients."""
        self.optimizer.zero_grad(set_to_none=set_to_none)

    clear_grad = zero_grad

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's optimizer state."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put this rank's optimizer state back."""
        self.optimizer.load_state_dict(state_dict)

    def _wrap(self, moved: Mapping[nn.Parameter, nn.Parameter | None] | None) -> None:
        model, parts = self._model, self._model.parallel.parts()
        if moved is not None:
            move_parameters(self.optimizer, moved, parts=parts)
        # The masters are copies of this rank's own weights, so they come after the spreading.
        self.optimizer = place_state(
            self.optimizer, module=model.module, precision=model.precision, pieces=model.parallel.pieces
        )
        self._spread = ParallelOptimizer(
            self.optimizer, parts=parts, clip_grad_norm=self._clip_grad_norm, scaler=model.scaler
        )
