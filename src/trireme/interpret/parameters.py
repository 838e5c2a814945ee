"""Local parameters in place of whole ones."""

from __future__ import annotations

import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.interpret.tensor_plan import TensorPlan


def shard_parameters(module: nn.Module, plan: TensorPlan, *, rank: int) -> None:
    """Replace each parameter by this rank's share, a plain ``nn.Parameter``; tied ones stay one.

    Do so before an optimizer is built: it would hold the whole parameters.

    Raises:
        LayoutError: The plan was made for another module.
    """
    replaced: dict[int, nn.Parameter] = {}
    for prefix, owner in module.named_modules():
        for name, parameter in owner._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in replaced:
                replaced[id(parameter)] = _share(parameter, f"{prefix}.{name}" if prefix else name, plan, rank)
            owner._parameters[name] = replaced[id(parameter)]


def _share(parameter: nn.Parameter, name: str, plan: TensorPlan, rank: int) -> nn.Parameter:
    found = plan.parameters.get(name)
    if found is None or parameter.shape != torch.Size(found.shape):
        raise LayoutError("interpret.other_module", name=name, shape=tuple(parameter.shape))
    if found.dim is None:
        return parameter
    return nn.Parameter(found.take(parameter.detach(), rank=rank).clone(), requires_grad=parameter.requires_grad)
