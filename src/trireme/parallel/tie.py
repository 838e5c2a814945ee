"""Parameters that several stages hold: each computes a part of the gradient, and all need the sum."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trireme.parallel.stage import StageSet
from trireme.parallel.transport import Lane
from trireme.plan import Schedule


class TiedGradients:
    """Sums gradients of tied parameters over the ranks of a pipeline that hold them.

    ``start`` comes before the first forward of a step, ``sum`` when each rank's own gradients are complete (all
    micro-batches, all data-parallel ranks); every rank of the pipeline calls both. Gradients that were there before
    are complete sums and are added once. Stages of one rank share one parameter, so nothing is left among them.

    Attributes:
        holders: For each such parameter, the ranks of the pipeline that hold it.
        sent_bytes: What this rank has sent of their gradients.
    """

    def __init__(self, stages: StageSet, *, lane: Lane, schedule: Schedule) -> None:
        self._module, self._lane = stages.module, lane
        self.holders = tied_holders(stages.readers, schedule)
        self._earlier: dict[str, Tensor] = {}
        self.sent_bytes = 0

    def start(self) -> None:
        """Set aside what earlier steps have summed."""
        for name, parameter in self._held():
            if parameter.grad is not None:
                self._earlier[name] = parameter.grad
                parameter.grad = None

    def sum(self) -> None:
        """Replace each tied gradient by the sum; a parameter without any gradient anywhere stays without."""
        for name, parameter in self._held():
            self._sum(parameter, self.holders[name])
            earlier = self._earlier.pop(name, None)
            if earlier is not None:
                parameter.grad = earlier if parameter.grad is None else parameter.grad.add_(earlier)

    def _held(self) -> list[tuple[str, nn.Parameter]]:
        names = [name for name, ranks in self.holders.items() if self._lane.rank in ranks]
        return [(name, self._module.get_parameter(name)) for name in names]

    def _sum(self, parameter: nn.Parameter, ranks: tuple[int, ...]) -> None:
        hub, others = ranks[0], ranks[1:]
        if self._lane.rank != hub:
            self._send(parameter.grad, hub)
            self._receive_into(parameter, hub)
            return
        for rank in others:
            found = self._receive(parameter, rank)
            if found is not None:
                parameter.grad = found if parameter.grad is None else parameter.grad + found
        for rank in others:
            self._send(parameter.grad, rank)

    def _send(self, gradient: Tensor | None, target: int) -> None:
        group = self._lane.group(self._lane.rank, target)
        flag = torch.tensor([gradient is not None], dtype=torch.int64, device=self._lane.device)
        dist.send(flag, group=group, group_dst=target)
        if gradient is not None:
            self.sent_bytes += _local(gradient).numel() * gradient.element_size()
            dist.send(_local(gradient).contiguous(), group=group, group_dst=target)

    def _receive(self, parameter: nn.Parameter, source: int) -> Tensor | None:
        group = self._lane.group(source, self._lane.rank)
        flag = torch.empty(1, dtype=torch.int64, device=self._lane.device)
        dist.recv(flag, group=group, group_src=source)
        if not flag.item():
            return None
        gradient = torch.zeros_like(parameter)
        dist.recv(_local(gradient), group=group, group_src=source)
        return gradient

    def _receive_into(self, parameter: nn.Parameter, source: int) -> None:
        summed = self._receive(parameter, source)
        if summed is not None and parameter.grad is not None:
            _local(parameter.grad).copy_(_local(summed))
        elif summed is not None:
            parameter.grad = summed


def tied_holders(readers: Mapping[str, tuple[int, ...]], schedule: Schedule) -> dict[str, tuple[int, ...]]:
    """Give the pipeline ranks of every parameter that more than one of them holds."""
    held = {name: sorted({schedule.rank_of(stage) for stage in stages}) for name, stages in sorted(readers.items())}
    return {name: tuple(ranks) for name, ranks in held.items() if len(ranks) > 1}


def _local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
