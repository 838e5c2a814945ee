"""Which weights an update would have moved but rounding kept: the price of a pure bf16 update.

Near 1.0 bf16 has steps of 1/128, so an update of 1e-4 vanishes and, without a master copy in fp32,
vanishes every time.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

DEFAULT_EVERY_STEPS = 50


class RoundingWatch:
    """Compares weights before and after an update, every so many updates (it needs a copy of them)."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, every_steps: int = DEFAULT_EVERY_STEPS) -> None:
        self.optimizer = optimizer
        self.every_steps = every_steps
        self.num_updates = 0
        self._before: list[list[torch.Tensor]] | None = None

    def before(self) -> None:
        """Take a copy if this update is one to watch."""
        self._before = None
        if self.num_updates % self.every_steps == 0:
            self._before = [[p.detach().clone() for p in group["params"]] for group in self.optimizer.param_groups]
        self.num_updates += 1

    def after(self) -> Mapping[str, float]:
        """Return per group the share of elements whose update was lost; empty when not watching."""
        if self._before is None:
            return {}
        groups = self.optimizer.param_groups
        ratios = {
            str(group.get("name", index)): self._lost_ratio(group["params"], before)
            for index, (group, before) in enumerate(zip(groups, self._before, strict=True))
        }
        self._before = None
        return ratios

    def _lost_ratio(self, parameters: list[torch.Tensor], before: list[torch.Tensor]) -> float:
        lost = asked = 0
        for parameter, old in zip(parameters, before, strict=True):
            if parameter.grad is None:
                continue
            wanted = self._wanted(parameter)
            asked += int(wanted.sum())
            lost += int((wanted & (parameter.detach() == old)).sum())
        return lost / asked if asked else 0.0

    def _wanted(self, parameter: torch.Tensor) -> torch.Tensor:
        """Return where the optimizer had a non-zero update: its momentum says so, else the gradient."""
        momentum: torch.Tensor = self.optimizer.state.get(parameter, {}).get("exp_avg", parameter.grad)
        return momentum != 0
