"""Faults in what is handed to a parallel module: rows, losses, counts, masks, optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from trireme.verify.batch import part_of
from trireme.verify.reference import Recipe
from trireme.verify.stand import Stand

LossFn = Callable[[Any, Mapping[str, Any]], Any]


@contextmanager
def mean_of_means(stand: Stand) -> Iterator[None]:
    """Every rank and micro-batch divides by its own count; then all are averaged."""
    loss_fn = stand.subject.objective.loss_fn

    def own_mean(outputs: Any, batch: Mapping[str, Any]) -> tuple[Tensor, int]:
        loss_sum, count = loss_fn(outputs, batch)
        stand.has_bitten = True
        return loss_sum / torch.as_tensor(count).clamp_min(1), 1

    _change(stand, loss_fn=own_mean, count_fn=lambda batch: 1)
    yield


@contextmanager
def average_over_dp(stand: Stand) -> Iterator[None]:
    """Gradients of data-parallel ranks are averaged where they should be added."""
    _scale_gradients(stand, lambda: 1 / stand.layout.dp)
    yield


@contextmanager
def divide_by_microbatches(stand: Stand) -> Iterator[None]:
    """The schedule divides accumulated gradients by the number of micro-batches, though the loss is divided already."""
    _scale_gradients(stand, lambda: 1 / stand.layout.num_microbatches)
    yield


@contextmanager
def last_microbatch_only(stand: Stand) -> Iterator[None]:
    """Each micro-batch's gradient replaces the one before it."""
    scored = 0

    def factor() -> float:
        nonlocal scored
        scored += 1
        return 1.0 if scored % stand.layout.num_microbatches == 0 else 0.0

    _scale_gradients(stand, factor)
    yield


@contextmanager
def same_rows(stand: Stand) -> Iterator[None]:
    """Every data-parallel rank reads the first one's rows."""
    whole = stand.global_batches
    stand.has_bitten = True
    stand.batches = [part_of(batch, stand.layout, rank=0) for batch in whole]
    yield


@contextmanager
def mask_on_first_stage(stand: Stand) -> Iterator[None]:
    """Stages after the first see no padding mask."""
    call = stand.subject.objective.call

    def unmasked(module: nn.Module, batch: Mapping[str, Any]) -> Any:
        stand.has_bitten |= any("mask" in key for key in batch)
        return call(module, {key: torch.ones_like(value) if "mask" in key else value for key, value in batch.items()})

    if stand.place.pp > 0:
        _change(stand, call=unmasked)
    yield


@contextmanager
def one_rank_never_steps(stand: Stand) -> Iterator[None]:
    """The last rank of the sharded axis keeps its old weights."""
    if stand.place.dp_shard == stand.layout.dp_shard - 1:
        stand.has_bitten = True
        stand.recipe = _Frozen(**{name: getattr(stand.recipe, name) for name in ("optimizer", "clip_grad_norm")})
    yield


class _Frozen(Recipe):
    """An optimizer whose steps do nothing."""

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        optimizer = Recipe.build(self, parameters)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        return optimizer


def _scale_gradients(stand: Stand, factor: Callable[[], float]) -> None:
    """Leave the loss's number as it is and multiply what flows back from it."""
    loss_fn = stand.subject.objective.loss_fn

    def scaled(outputs: Any, batch: Mapping[str, Any]) -> tuple[Tensor, Any]:
        loss_sum, count = loss_fn(outputs, batch)
        known = loss_sum.detach()
        stand.has_bitten = True
        return known + (loss_sum - known) * factor(), count

    _change(stand, loss_fn=scaled)


def _change(stand: Stand, **changes: Any) -> None:
    objective = replace(stand.subject.objective, **changes)
    stand.subject = replace(stand.subject, objective=objective)
