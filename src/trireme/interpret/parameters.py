"""Putting a plan to work: local parameters in place of whole ones, and the context in which they compute."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn

from trireme.errors import LayoutError
from trireme.interpret.collective import CollectiveCount, Line
from trireme.interpret.interpreter import Interpreter
from trireme.interpret.split import Shard
from trireme.interpret.tensor_plan import TensorPlan
from trireme.interpret.tensor_state import with_shard


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


@contextmanager
def interpreting(
    module: nn.Module,
    plan: TensorPlan,
    group: dist.ProcessGroup | None = None,
    *,
    count: CollectiveCount | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> Iterator[Interpreter]:
    """Run what is inside with ``module``'s parameters as shards of one whole; the loss belongs inside.

    Args:
        module: Sharded by ``shard_parameters`` with the same plan.
        plan: How it is cut.
        group: The ranks of the axis. Default: all.
        count: Takes the collectives, those of backward too.
        notice: Told once of everything that had to be gathered.

    Raises:
        LayoutError: The parameters aren't the shares that the plan gives this rank.
    """
    group = dist.group.WORLD if group is None else group
    rank, degree = dist.get_rank(group), dist.get_world_size(group)
    if degree != plan.degree:
        raise LayoutError("interpret.other_degree", planned=plan.degree, degree=degree)
    _mark_parameters(module, plan, rank)
    line = Line(rank=rank, degree=degree, group=group, count=count or CollectiveCount())
    keeps = any(each.split is not None and each.split.keeps_some for each in plan.parameters.values())
    with Interpreter(line, opaque=plan.opaque, notice=notice, keeps_segments=keeps) as interpreter:
        yield interpreter


def _mark_parameters(module: nn.Module, plan: TensorPlan, rank: int) -> None:
    for name, parameter in module.named_parameters(remove_duplicate=False):
        found = plan.parameters.get(name)
        if found is None or parameter.shape != found.local_shape(rank=rank):
            raise LayoutError("interpret.other_module", name=name, shape=tuple(parameter.shape))
        if found.dim is not None and found.split is not None:
            with_shard(parameter, Shard(dim=found.dim, split=found.split, sources=frozenset({name})))
