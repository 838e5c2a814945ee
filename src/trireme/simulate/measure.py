"""Two steps of one rank, the second one measured: buckets exist by then, and the optimizer has its state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from trireme.parallel import ParallelModel, ParallelOptimizer
from trireme.simulate.ledger import Ledger, Peak
from trireme.simulate.torch_private import storages_resized
from trireme.simulate.world import World
from trireme.train import Objective

CollectiveCalls = Mapping[tuple[str, str], int]
"""By axis and kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one rank holds and sends in a step.

    Attributes:
        peak: Of the second step.
        parameter_numel: Elements of parameters held here.
        resting_bytes: What is alive between steps.
        calls: Collectives.
        moved_bytes: Their sizes.
    """

    peak: Peak
    parameter_numel: int
    resting_bytes: int
    calls: CollectiveCalls
    moved_bytes: CollectiveCalls


def measure(
    world: World,
    model: ParallelModel,
    optimizer: ParallelOptimizer,
    *,
    objective: Objective,
    batch: Mapping[str, Any],
) -> Measurement:
    """Run two steps under ``world``, which is entered already, and tell of the second."""
    world.ledger = ledger = Ledger()
    parameters = list(model.parameters())
    for parameter in parameters:
        ledger.note(parameter, "parameters")
        _watch_gradient(parameter, ledger)
    for tensor in (*model.module.buffers(), *(value for value in batch.values() if isinstance(value, Tensor))):
        ledger.note(tensor, "other")
    with storages_resized(ledger.resize):
        for _ in range(2):
            ledger.restart()
            world.collectives.restart()
            _step(ledger, model, optimizer, objective=objective, batch=batch)
    return Measurement(
        peak=ledger.peak,
        parameter_numel=sum(_local_numel(parameter) for parameter in parameters),
        resting_bytes=ledger.total_bytes,
        calls=dict(world.collectives.calls),
        moved_bytes=dict(world.collectives.moved_bytes),
    )


def _step(
    ledger: Ledger,
    model: ParallelModel,
    optimizer: ParallelOptimizer,
    *,
    objective: Objective,
    batch: Mapping[str, Any],
) -> None:
    ledger.part, ledger.moment = "activations", "forward"
    model.train_step(batch, objective.loss_fn, count_fn=objective.count)
    ledger.assign((parameter.grad for parameter in model.parameters()), "gradients")
    ledger.part, ledger.moment = "optimizer", "optimizer"
    optimizer.step()
    optimizer.zero_grad()


def _watch_gradient(parameter: nn.Parameter, ledger: Ledger) -> None:
    if parameter.requires_grad and parameter.is_leaf:
        parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            lambda held: ledger.assign([held.grad], "gradients")
        )


def _local_numel(parameter: Tensor) -> int:
    local = getattr(parameter, "_local_tensor", parameter)
    return int(local.numel())
