"""What is minimised: how a module is called, how its outputs become a loss, what the loss is divided by.

The contract is ``loss_fn(outputs, batch) -> (loss_sum, count)``. The count depends on the batch
alone, so a step can add up the counts of all micro-batches and ranks before its first backward and
divide every one of them by the same number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from trireme.errors import TrainError
from trireme.models import call_model, forward_inputs

IGNORED_LABEL = -100

Tensors = Mapping[str, Any]
LossFn = Callable[[Any, Tensors], Any]
CallFn = Callable[[nn.Module, Tensors], Any]
CountFn = Callable[[Tensors], int]
AuxiliaryFn = Callable[[Any, Tensors], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One forward's loss, still on the device; ``count`` is what ``loss_fn`` says it summed over."""

    loss_sum: torch.Tensor
    count: torch.Tensor | int
    auxiliary: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A loss function with all that has to be known about it.

    ``loss_reduction``: None for ``(loss_sum, count)``; ``mean`` for a bare scalar that is a mean
    over the micro-batch's count; ``batch`` for a scalar that needs the whole batch at once.
    ``count_fn``: what is counted; by default the labels that aren't -100, else (``mean`` and
    ``batch``) the samples. ``auxiliary``: a term that is a mean over the micro-batch, such as a
    router's balance loss; micro-batches and ranks are weighted by their share of the count.
    """

    loss_fn: LossFn
    call: CallFn
    loss_reduction: Literal["mean", "batch"] | None = None
    count_fn: CountFn | None = None
    auxiliary: AuxiliaryFn | None = None

    def count(self, batch: Tensors) -> int:
        """Return what this batch's loss is summed over, before any forward.

        Raises:
            TrainError: Nothing says how to count.
        """
        if self.count_fn is not None:
            return int(self.count_fn(batch))
        labels = batch.get("labels")
        if isinstance(labels, torch.Tensor) and labels.dim() >= 2 and not labels.is_floating_point():
            return int((labels != IGNORED_LABEL).sum())
        if self.loss_reduction is not None:
            return num_rows(batch)
        raise TrainError("train.count_unknown", names=", ".join(batch))

    def evaluate(self, module: nn.Module, batch: Tensors, *, count: int) -> Loss:
        """Run the forward and return its summed loss.

        Raises:
            TrainError: ``loss_fn`` returns a bare scalar and nothing names its denominator, or the
                outputs carry an auxiliary loss that nothing claims.
        """
        return self.score(self.call(module, batch), batch, count=count)

    def score(self, outputs: Any, batch: Tensors, *, count: int) -> Loss:
        """Return the summed loss of a forward's outputs.

        Raises:
            TrainError: As ``evaluate``.
        """
        if self.auxiliary is None:
            _refuse_auxiliary(None, (), outputs)
        auxiliary = self.auxiliary(outputs, batch) if self.auxiliary else None
        result = self.loss_fn(outputs, batch)
        if self.loss_reduction is not None:
            return Loss(loss_sum=_scalar(result) * count, count=count, auxiliary=auxiliary)
        if not isinstance(result, tuple) or len(result) != 2:
            raise TrainError("train.bare_loss", returned=type(result).__name__)
        return Loss(loss_sum=_scalar(result[0]), count=result[1], auxiliary=auxiliary)


def call_module(module: nn.Module, batch: Tensors) -> Any:
    """Call a module with what its forward takes of the batch, by name; token batches give logits.

    Raises:
        TrainError: Its forward takes nothing of the batch, or it returns an auxiliary loss that
            logits alone would drop.
    """
    if "input_ids" in batch:
        handle = module.register_forward_hook(_refuse_auxiliary)
        try:
            return call_model(module, batch)
        finally:
            handle.remove()
    taken = {key: name for key, name in forward_inputs(module).items() if key in batch}
    if not taken:
        names = ", ".join(forward_inputs(module))
        raise TrainError("train.nothing_taken", kind=type(module).__name__, takes=names, names=", ".join(batch))
    return module(**{name: batch[key] for key, name in taken.items()})


def _refuse_auxiliary(_module: nn.Module | None, _inputs: Any, outputs: Any) -> None:
    if getattr(outputs, "aux_loss", None) is not None:
        raise TrainError("train.auxiliary_unclaimed")


def num_rows(batch: Tensors) -> int:
    """Return the samples of a batch: the length of dim 0 of its tensors."""
    for value in batch.values():
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return int(value.shape[0])
    raise TrainError("train.no_tensors", names=", ".join(batch))


def _scalar(value: Any) -> torch.Tensor:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise TrainError("train.loss_shape", shape=shape)
    return value.reshape(())
