"""A plan at work on one module: local parameters in place, and the context in which they compute as one whole."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret.collective import CollectiveCount, Line
from trireme.interpret.interpreter import Active, Interpreter
from trireme.interpret.split import Shard
from trireme.interpret.tensor_plan import TensorPlan
from trireme.interpret.tensor_state import map_tensors, with_shard
from trireme.interpret.torch_private import DisableTorchFunction


class Binding:
    """One module's parameters, shards of one whole, for as long as the module lives.

    Attributes:
        plan: How the parameters are cut.
        interpreter: The one that meets every call made in ``active()``.
    """

    def __init__(self, plan: TensorPlan, line: Line, *, notice: Callable[[str], None]) -> None:
        self.plan = plan
        keeps = any(each.split is not None and each.split.keeps_some for each in plan.parameters.values())
        self.interpreter = Interpreter(
            line, opaque=plan.opaque, notice=notice, keeps_segments=keeps, tokens=plan.tokens
        )
        self.interpreter.tables = plan.tables
        self._shards = {
            name: Shard(dim=each.dim, split=each.split, sources=frozenset({name}))
            for name, each in plan.parameters.items()
            if each.dim is not None and each.split is not None
        }

    @property
    def count(self) -> CollectiveCount:
        """The collectives so far, those of backward too."""
        return self.interpreter.line.count

    @property
    def notices(self) -> tuple[str, ...]:
        """What had to be gathered so far, each once."""
        return tuple(self.interpreter.notices)

    def active(self) -> Active:
        """Give the context to run the module in, and the loss that reads its outputs.

        Enter it at the root and again in each part that is run apart from it (recomputation, a block whose
        turn is decided elsewhere): where calls are met already, entering again changes nothing.
        """
        return self.interpreter.active()

    def mark(self, prefix: str, module: nn.Module) -> None:
        """Say again which parameters below ``module`` are shards; needed after its ``Parameter`` objects changed.

        Args:
            prefix: Path of ``module`` in the module that was planned; empty for that one itself.
            module: Whose parameters to mark, those of its children too.

        Raises:
            LayoutError: A parameter isn't the share that the plan gives this rank.
        """
        rank = self.interpreter.line.rank
        for name, parameter in module.named_parameters(prefix=prefix, remove_duplicate=False):
            found = self.plan.parameters.get(name)
            if found is None or parameter.shape != found.local_shape(rank=rank):
                raise LayoutError("interpret.other_module", name=name, shape=tuple(parameter.shape))
            shard = self._shards.get(name)
            if shard is not None:
                with_shard(parameter, shard)

    def mark_one(self, name: str, parameter: Tensor) -> None:
        """Say that a tensor stands for the parameter of that name and is a shard if that one is."""
        shard = self._shards.get(name)
        if shard is not None:
            with_shard(parameter, shard)

    def whole(self, value: Any) -> Any:
        """Give outputs with every shard among them gathered."""
        with DisableTorchFunction():
            return map_tensors(value, self.interpreter.gather)


def bind(
    module: nn.Module,
    plan: TensorPlan,
    group: dist.ProcessGroup | None = None,
    *,
    count: CollectiveCount | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> Binding:
    """Put a plan to work on a module whose parameters ``shard_parameters`` has cut.

    Args:
        module: Sharded with the same plan.
        plan: How it is cut.
        group: The ranks of the axis. Default: all.
        count: Takes the collectives.
        notice: Told once of everything that had to be gathered.

    Raises:
        LayoutError: The group has another size, or the parameters aren't the shares that the plan gives this rank.
    """
    group = dist.group.WORLD if group is None else group
    rank, degree = dist.get_rank(group), dist.get_world_size(group)
    if degree != plan.degree:
        raise LayoutError("interpret.other_degree", planned=plan.degree, degree=degree)
    binding = Binding(
        plan, Line(rank=rank, degree=degree, group=group, count=count or CollectiveCount()), notice=notice
    )
    binding.mark("", module)
    return binding


@contextmanager
def interpreting(
    module: nn.Module,
    plan: TensorPlan,
    group: dist.ProcessGroup | None = None,
    *,
    count: CollectiveCount | None = None,
    notice: Callable[[str], None] = warnings.warn,
) -> Iterator[Interpreter]:
    """Run what is inside, the loss too, as ``bind(...).active()`` does, for once."""
    with bind(module, plan, group, count=count, notice=notice).active() as interpreter:
        yield interpreter
