"""Replicas that train by themselves and meet every so many updates, for links too slow to meet at each.

Local SGD takes the mean of the replicas' weights; DiLoCo takes the way from where they parted to that mean as a
gradient, and follows it with Nesterov's momentum. The inner optimizers' states stay each replica's own.

**Source**: Stich, "Local SGD Converges Fast and Communicates Little", 2019; Douillard et al., "DiLoCo: Distributed
Low-Communication Training of Language Models", 2023, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trireme.parallel.communication import Communication
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.link import Link

ANCHOR, MOMENTUM = "anchor/", "momentum/"


class OuterStep:
    """Brings the weights of replicas together after every ``local_steps`` updates.

    Attributes:
        num_inner: Updates since they last met.
        link: The ranks that hold the same shards in other replicas.
    """

    def __init__(self, asked: Communication, parameters: Sequence[tuple[str, nn.Parameter]], *, link: Link) -> None:
        self.num_inner = 0
        self.link = link
        self._asked = asked
        self._parameters = list(parameters)
        self._anchor = {name: _wide(local_shard(each)).clone() for name, each in self._parameters}
        self._momentum: dict[str, Tensor] = {}
        if asked.outer == "nesterov":
            self._momentum = {name: torch.zeros_like(each) for name, each in self._anchor.items()}

    def settle(self, *, is_updated: bool) -> None:
        """Count an update of this replica; with the last one of a round the replicas meet."""
        self.num_inner += is_updated
        if self.num_inner >= self._asked.local_steps:
            self.meet()

    @torch.no_grad()
    def meet(self) -> None:
        """Make all replicas' weights the same; nothing where they are."""
        if not self.num_inner:
            return
        for members in self._portions():
            shards = [_wide(local_shard(each)) for _, each in members]
            mean = torch.cat([shard.flatten() for shard in shards])
            self.link.all_reduce(mean)
            mean /= self.link.degree
            parts = torch.split(mean, [shard.numel() for shard in shards])
            for (name, each), part in zip(members, parts, strict=True):
                self._move(name, local_shard(each), part)
        self.num_inner = 0

    def tensors(self) -> dict[str, Tensor]:
        """Give what a checkpoint keeps of it."""
        named = {ANCHOR: self._anchor, MOMENTUM: self._momentum}
        return {f"{kind}{name}": each for kind, found in named.items() for name, each in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Give the rest."""
        return {"num_inner": self.num_inner}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``to_json`` gave; tensors are filled in place."""
        self.num_inner = int(state["num_inner"])

    def start_from(self) -> None:
        """Part from the weights as they are now, which all replicas have."""
        self.num_inner = 0
        for name, each in self._parameters:
            self._anchor[name].copy_(local_shard(each))

    def _move(self, name: str, shard: Tensor, mean: Tensor) -> None:
        anchor = self._anchor[name]
        mean = mean.view(anchor.shape)
        if self._asked.outer == "average":
            anchor.copy_(mean)
        else:
            way, momentum = anchor - mean, self._momentum[name]
            momentum.mul_(self._asked.outer_momentum).add_(way)
            anchor.sub_(way.add_(momentum, alpha=self._asked.outer_momentum), alpha=self._asked.outer_lr)
        shard.copy_(anchor)

    def _portions(self) -> Iterator[list[tuple[str, nn.Parameter]]]:
        """Give the parameters in portions of a bucket's size, each of one format."""
        portion: list[tuple[str, nn.Parameter]] = []
        size = 0
        for name, each in self._parameters:
            shard = self._anchor[name]
            is_other = portion and self._anchor[portion[0][0]].dtype != shard.dtype
            if is_other or size >= self._asked.bucket_bytes:
                yield portion
                portion, size = [], 0
            portion.append((name, each))
            size += shard.numel() * shard.element_size()
        if portion:
            yield portion


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
