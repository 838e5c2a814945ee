"""A run's module on the ranks of a layout, and what its data, its loss and its samples see of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from trireme.config import CommunicationSection
from trireme.data import Batch
from trireme.job.layout import Arrangement
from trireme.parallel import Communication, Compile, ParallelModel, parallelize
from trireme.train import Objective, host_tensors, take_rows

_EXAMPLE_ROWS = 2


def spread_module(
    module: nn.Module,
    batch: Batch,
    *,
    arrangement: Arrangement,
    objective: Objective,
    seed: int,
    communication: CommunicationSection,
    compiled: Compile = "none",
    parameters_on_host: bool = False,
    notice: Callable[[str], None],
) -> ParallelModel:
    """Spread a module over the ranks, as it is called and scored in training.

    Raises:
        LayoutError: The layout doesn't fit it.
    """
    example = host_tensors(take_rows(batch, _EXAMPLE_ROWS))

    def loss_fn(outputs: Any, tensors: Mapping[str, Any]) -> tuple[torch.Tensor, int]:
        return objective.score(outputs, tensors, count=1).loss_sum, 1

    return parallelize(
        module,
        arrangement.layout,
        example=example,
        call=objective.call,
        loss_fn=loss_fn,
        cuts=arrangement.cuts,
        recompute=arrangement.recompute,
        compiled=compiled,
        seed=seed,
        communication=_asked(communication),
        parameters_on_host=parameters_on_host,
        notice=notice,
    )


def _asked(section: CommunicationSection) -> Communication:
    return Communication(
        compress=section.compress,
        warmup_steps=section.warmup_steps,
        rank=section.powersgd_rank,
        topk_ratio=section.topk_ratio,
        layered=section.layered,
        ranks_per_node=section.ranks_per_node,
        bucket_bytes=int(section.bucket_mib * 2**20),
        reduce=section.reduce,
        local_steps=section.local_steps,
        outer=section.outer,
        outer_lr=section.outer_lr,
        outer_momentum=section.outer_momentum,
    )


class Outputs(nn.Module):
    """A spread module that is called as a whole one is; all ranks call it together and get the same logits."""

    def __init__(self, model: ParallelModel) -> None:
        super().__init__()
        self.config = getattr(model.module, "config", None)
        self._model = [model]  # not a child: its parameters are not this module's

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
        """Give logits ``[B, T, V]``."""
        batch = {"input_ids": input_ids, "position_ids": position_ids}
        given = {name: value for name, value in batch.items() if value is not None}
        logits: torch.Tensor = self._model[0].outputs(given)
        return logits
