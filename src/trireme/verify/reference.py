"""The same steps on one device, in plain PyTorch: what every layout must be equal to."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trireme.interpret import CountedRandomness
from trireme.train import Objective
from trireme.verify.batch import num_rows
from trireme.verify.subject import Subject, summed_loss
from trireme.verify.trace import StepTrace, Trace, copy_tensor, norm_of

_LR = 0.05
_ADAM_LR = 1e-3
_CLIP_RATIO = 0.5
"""Clipping must bite, so its limit is half of the first step's norm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How weights are updated.

    ``sgd`` has a momentum, so that state counts, and moves a weight in proportion to its gradient. AdamW divides by
    the gradient's own size: where a true gradient is zero, what rounding left of it becomes a step of full length.
    So AdamW is compared in fp64 only, where what rounding leaves is far below its epsilon.
    """

    optimizer: str
    clip_grad_norm: float | None = None

    def build(self, parameters: Sequence[nn.Parameter] | Any) -> torch.optim.Optimizer:
        """Give the optimizer over these parameters."""
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=_ADAM_LR, weight_decay=0.1)
        return torch.optim.SGD(parameters, lr=_LR, momentum=0.9, weight_decay=0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One device's numbers, and the recipe with the clipping limit that follows from them."""

    trace: Trace
    recipe: Recipe


def run_reference(subject: Subject, batches: Sequence[Mapping[str, Any]], *, recipe: Recipe) -> Reference:
    """Train the subject's module on whole batches, a step each; the module is used up by it."""
    module, steps = subject.module.train(), []
    optimizer = recipe.build(module.parameters())
    clip = recipe.clip_grad_norm
    randomness = CountedRandomness(module, seed=subject.seed, ranks={}, notice=lambda _: None)
    for number, batch in enumerate(batches):
        optimizer.zero_grad(set_to_none=True)
        with randomness.at(step=number, first_row=0, rows=num_rows(batch)):
            step = backward(module, subject.objective, batch)
        steps.append(step)
        clip = clip or _CLIP_RATIO * step.grad_norm
        scale_grads(module, min(1.0, clip / step.grad_norm) if step.grad_norm else 1.0)
        optimizer.step()
    after = {name: copy_tensor(parameter) for name, parameter in module.named_parameters()}
    return Reference(
        trace=Trace(steps=tuple(steps), parameters=after),
        recipe=Recipe(optimizer=recipe.optimizer, clip_grad_norm=clip),
    )


def backward(module: nn.Module, objective: Objective, batch: Mapping[str, Any]) -> StepTrace:
    """Run one forward and backward of a whole batch and note what came out."""
    loss_sum, count = summed_loss(objective)(objective.call(module, batch), batch)
    torch.autograd.backward(loss_sum / int(count))
    gradients = {
        name: copy_tensor(parameter.grad) for name, parameter in module.named_parameters() if parameter.grad is not None
    }
    return StepTrace(
        loss=float(loss_sum.detach()) / int(count), grad_norm=norm_of(gradients.values()), gradients=gradients
    )


def norm_of_grads(module: nn.Module) -> float:
    """Return the norm over all gradients of a module."""
    return norm_of(parameter.grad for parameter in module.parameters() if parameter.grad is not None)


def measure_noise(subject: Subject, batch: Mapping[str, Any], *, error_of: Callable[[Trace, Trace], float]) -> float:
    """Return how far one device is from itself when rounding differs: rows reversed, weights moved by a few bits.

    A module that computes a part in single precision, whatever its weights are, shows here.
    """
    plain = copy.deepcopy(subject.module).eval()
    moved = copy.deepcopy(plain)
    _move_bits(moved)
    backwards = {name: _flipped(value) for name, value in batch.items()}
    first, second = (
        Trace(steps=(backward(module, subject.objective, each),), parameters={})
        for module, each in ((plain, batch), (moved, backwards))
    )
    return error_of(first, second)


def _flipped(value: Any) -> Any:
    return value.flip(0) if isinstance(value, Tensor) and value.ndim else value


@torch.no_grad()
def _move_bits(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        if parameter.is_floating_point():
            sign = torch.randint(-2, 3, parameter.shape, generator=generator).to(parameter)
            parameter.mul_(1 + sign * torch.finfo(parameter.dtype).eps)


@torch.no_grad()
def scale_grads(module: nn.Module, factor: float) -> None:
    """Multiply every gradient."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(factor)
