"""Forwards whose way depends on activations: what ranks that share parameters must agree on, block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from trireme.errors import LayoutError


class RouteAgreement:
    """Finds out where two parts of a batch take different ways: one device takes one way with all rows.

    Ranks that share parameters meet before each block, so that none waits in a collective for another one; of a
    rank's micro-batches the ways are compared. It costs a message of two numbers a block, and stands only in modules
    that ask for values between blocks.
    """

    def __init__(self, blocks: Sequence[str], *, line: str, group: dist.ProcessGroup, device: Any) -> None:
        self._names = [*blocks, "-"]
        self._line, self._group, self._device = line, group, device
        self._way: list[int] = []
        self._first_way: list[int] | None = None

    def attach(self, module: nn.Module, blocks: Mapping[str, nn.Module]) -> None:
        """Stand before every other hook of the blocks, and behind the whole module."""
        for number, block in enumerate(blocks.values()):
            block.register_forward_pre_hook(self._before(number), prepend=True)
        module.register_forward_hook(lambda *_: self._end())

    def start(self) -> None:
        """Begin a step."""
        self._way, self._first_way = [], None

    def _before(self, number: int) -> Any:
        return lambda module, args: self._meet(number)

    def _meet(self, number: int) -> None:
        met = torch.tensor([number, -number], device=self._device)
        dist.all_reduce(met, op=dist.ReduceOp.MAX, group=self._group)
        self._compare(int(met[0]), -int(met[1]))
        self._way.append(number)

    def _end(self) -> None:
        self._meet(len(self._names) - 1)
        way, self._way = self._way, []
        first = self._first_way = self._first_way or way
        one, other = next(((one, other) for one, other in zip(first, way, strict=False) if one != other), (0, 0))
        self._compare(one, other)

    def _compare(self, one: int, other: int) -> None:
        if one != other:
            raise LayoutError("ranks.route_differs", line=self._line, one=self._names[one], other=self._names[other])
