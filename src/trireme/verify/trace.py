"""What is observed of a few training steps, whoever runs them: the numbers that must be equal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One step: the mean loss, every gradient by name before clipping, and the norm over all of them.

    A parameter without a gradient is not in ``gradients``.
    """

    loss: float
    grad_norm: float
    gradients: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """All steps, and every parameter after the last."""

    steps: tuple[StepTrace, ...]
    parameters: Mapping[str, Tensor]


def first_names(module: nn.Module) -> dict[str, str]:
    """Map every name of every parameter to the first name of the same parameter."""
    firsts: dict[int, str] = {}
    return {
        name: firsts.setdefault(id(parameter), name)
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }


def norm_of(gradients: Iterable[Tensor]) -> float:
    """Return the norm over all elements of all tensors, in fp64."""
    return math.sqrt(math.fsum(float(gradient.double().square().sum()) for gradient in gradients))


def copy_tensor(tensor: Tensor) -> Tensor:
    """Give the numbers of a tensor, apart from it, on the host."""
    return tensor.detach().to(device="cpu", copy=True)


def held_elements(parameters: Iterable[Tensor]) -> int:
    """Return the parameter elements that have storage here, tied ones once."""
    storages: dict[int, int] = {}
    for parameter in parameters:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        if local.device.type == "meta" or isinstance(local, torch._subclasses.fake_tensor.FakeTensor):
            continue
        storage = local.untyped_storage()
        allocated = storage.nbytes() // local.element_size()
        if allocated:
            storages[storage.data_ptr()] = min(local.numel(), allocated)
    return sum(storages.values())
