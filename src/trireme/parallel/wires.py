"""All that a rank sends by other than plain sums: which wire for which parameters, and what must outlive a restart."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.parallel.bucket import Exchange, all_reduce_bucket
from trireme.parallel.coded import CodedSum
from trireme.parallel.communication import Communication, check_communication
from trireme.parallel.feedback import Feedback
from trireme.parallel.fsdp_collective import CodedReduceScatter, CountedReduceScatter
from trireme.parallel.hierarchy import LayeredSum
from trireme.parallel.link import Link
from trireme.parallel.outer import OuterStep
from trireme.parallel.power_sgd import BASIS, LowRankSum
from trireme.parallel.replicate import Reducer
from trireme.parallel.shard import ShardWire
from trireme.parallel.traffic import Traffic, TrafficMeter
from trireme.parallel.wire import PlainSum, Summation, Wire
from trireme.plan import Axis, Layout, expert_copies, groups_of
from trireme.words import say

Scope = Literal["dense", "experts"]
"""Which parameters: those whose gradients all data-parallel ranks have, or experts."""


class Wires:
    """What gradients and weights of one rank travel on.

    Attributes:
        asked: What the run asks for.
        feedback: What codes have left out.
        outer: Brings replicas together; None where they are together after each update.
    """

    def __init__(self, asked: Communication, layout: Layout, *, device: torch.device, ranks_per_node: int) -> None:
        """Take what is asked; every rank of the world calls it with the same.

        Raises:
            LayoutError: The layout can't give it.
        """
        check_communication(asked, layout)
        self.asked = asked
        self.feedback = Feedback()
        self.outer: OuterStep | None = None
        self._layout = layout
        self._device = device
        self._ranks_per_node = asked.ranks_per_node or ranks_per_node
        self._wires: list[Wire] = []
        self._reducers: dict[Scope, Reducer] = {}
        self._scale: float | None = None
        self._num_nodes = 1

    @property
    def dense_axes(self) -> tuple[Axis, ...]:
        """Axes over which gradients of dense parameters add up with every update."""
        return ("dp_shard", "cp") if self.asked.is_local else ("dp_replicate", "dp_shard", "cp")

    @property
    def is_plain(self) -> bool:
        """Whether nothing here has a state."""
        return not self.asked.is_compressed and not self.asked.is_local

    def exchange(self, scope: Scope) -> Exchange:
        """Give what sums buckets of whole copies."""
        if not self.asked.is_compressed and not self.asked.layered:
            return all_reduce_bucket
        groups = expert_copies(self._layout) if scope == "experts" else groups_of(self._layout, self.dense_axes)
        if len(groups[0]) == 1:
            return all_reduce_bucket
        return self._build_wire(groups, scope=scope)

    def shard_wire(self, scope: str, *, plain: Collection[str] = ()) -> ShardWire | None:
        """Give what sums shards of ZeRO; None for plain sums."""
        if not self.asked.is_compressed:
            return None
        layout = self._layout
        if layout.dp_replicate > 1:
            copies = self._build_wire(groups_of(layout, "dp_replicate"), scope="dense")
            return ShardWire(copies=copies, plain=plain)
        if layout.dp_shard * layout.cp == 1:
            return None

        def build(meter: TrafficMeter, number: int) -> CountedReduceScatter:
            return CodedReduceScatter(
                meter,
                codec=self.asked.build_codec(),
                feedback=self.feedback,
                name=f"{scope}/unit-{number}",
                warmup_steps=self.asked.warmup_steps,
            )

        return ShardWire(build_scatter=build)

    @property
    def coded_axes(self) -> tuple[Axis, ...]:
        """Axes over which codes travel."""
        layout = self._layout
        if layout.zero and layout.dp_replicate > 1:
            return ("dp_replicate",)
        axes: tuple[Axis, ...] = ("dp_replicate", "dp_shard", "cp")
        return tuple(axis for axis in axes if getattr(layout, axis) > 1)

    @property
    def codes_nothing(self) -> bool:
        """Whether a code is asked for, but no gradient is summed over ranks."""
        return not self.coded_axes

    def tell_layers(self) -> str:
        """Say what two layers send between nodes, beside a flat ring."""
        num_ranks = self._layout.dp * self._layout.cp
        num_nodes = self._num_nodes
        ratio = layered_ratio(num_ranks, num_nodes=num_nodes)
        return say("wire.layers", ranks=num_ranks, nodes=num_nodes, saved=f"{1 - ratio:.0%}")

    def reduces_each(self, *, has_stages: bool) -> bool | None:
        """Say whether shards' gradients are summed with every micro-batch; None: as the stage of ZeRO has it."""
        if self.asked.reduce == "auto" or has_stages:
            return None
        return self.asked.reduce == "microbatch"

    def remember(self, scope: Scope, reducer: Reducer) -> None:
        """Keep the buckets of this one over a restart."""
        self._reducers[scope] = reducer

    def part_ways(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        """Have replicas train by themselves from these parameters on; every rank calls it.

        Raises:
            LayoutError: Weights of 16 bits would lose what replicas differ by.
        """
        if self.asked.is_local:
            if any(each.dtype.itemsize < 4 for _, each in parameters):
                raise LayoutError("wire.local_short", steps=self.asked.local_steps)
            group = _own_group(groups_of(self._layout, "dp_replicate"))
            self.outer = OuterStep(self.asked, parameters, link=self._link(group))

    def prepare(self, *, scale: float) -> None:
        """Say what gradients of the step that begins are multiplied by; what is left of others follows."""
        if self._scale is not None and scale != self._scale:
            self.feedback.rescale(scale / self._scale, except_for=BASIS)
        self._scale = scale

    def settle(self, *, is_updated: bool) -> None:
        """Say whether a step updated the weights."""
        self.feedback.settle(is_updated=is_updated)
        if self.outer is not None:
            self.outer.settle(is_updated=is_updated)

    def conclude(self) -> None:
        """Make all replicas one, at the end of training."""
        if self.outer is not None:
            self.outer.meet()

    def take_outer(self) -> Traffic | None:
        """Give what replicas have sent each other since the last call; None where they don't."""
        if self.outer is None:
            return None
        sent, crossing = self.outer.link.take()
        return Traffic(sent_bytes=sent, crossing_bytes=crossing)

    def tensors(self) -> dict[str, Tensor]:
        """Give this rank's own state, live."""
        outer = {} if self.outer is None else self.outer.tensors()
        return {f"left/{name}": each for name, each in self.feedback.tensors().items()} | outer

    def to_json(self) -> dict[str, Any]:
        """Give the rest of this rank's state, with what is needed to make room for the tensors."""
        return {
            "num_steps": self.feedback.num_steps,
            "scale": self._scale,
            "shapes": {
                name: [list(each.shape), str(each.dtype).removeprefix("torch.")]
                for name, each in self.feedback.tensors().items()
            },
            "buckets": {scope: reducer.bucket_names for scope, reducer in self._reducers.items()},
            "outer": None if self.outer is None else self.outer.to_json(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what ``to_json`` gave on this rank, and make room for the tensors, which are filled afterwards."""
        room = {
            name: torch.zeros(shape, dtype=getattr(torch, dtype), device=self._device)
            for name, (shape, dtype) in state["shapes"].items()
        }
        self.feedback.restore(room, num_steps=int(state["num_steps"]))
        self._scale = state["scale"]
        for scope, reducer in self._reducers.items():
            reducer.plan_buckets(state["buckets"].get(scope, ()))
        if self.outer is not None and state["outer"] is not None:
            self.outer.restore(state["outer"])

    def signature(self) -> dict[str, Any]:
        """Say of which runs this rank can take a state: the same layout, asking for the same."""
        kept = {name: value for name, value in asdict(self.asked).items() if name not in ("bucket_bytes", "reduce")}
        return {"layout": str(self._layout), "asked": kept}

    def _build_wire(self, groups: Sequence[Sequence[int]], *, scope: Scope) -> Wire:
        if self.asked.layered:
            return self._layered_wire(groups, scope=scope)
        link = self._link(_own_group(groups))
        wire = Wire(self._summation(link, scope=scope), links=[link], plain=PlainSum(link), device=self._device)
        self._wires.append(wire)
        return wire

    def _layered_wire(self, groups: Sequence[Sequence[int]], *, scope: Scope) -> Wire:
        """Split each group by nodes: ranks of one node, and ranks with the same place in different nodes."""
        inside, across = split_by_node(groups, ranks_per_node=self._ranks_per_node)
        self._num_nodes = len(across[0])
        near, far = self._link(_own_group(inside)), self._link(_own_group(across))
        wire = Wire(
            LayeredSum(near, self._summation(far, scope=scope)),
            links=[near, far],
            plain=LayeredSum(near, PlainSum(far)),
            device=self._device,
        )
        self._wires.append(wire)
        return wire

    def _summation(self, link: Link, *, scope: Scope) -> Summation:
        asked = self.asked
        if not asked.is_compressed:
            return PlainSum(link)
        if asked.compress == "powersgd":
            return LowRankSum(
                link, rank=asked.rank, feedback=self.feedback, scope=scope, warmup_steps=asked.warmup_steps
            )
        codec = asked.build_codec()
        return CodedSum(link, codec, feedback=self.feedback, scope=scope, warmup_steps=asked.warmup_steps)

    def _link(self, group: dist.ProcessGroup) -> Link:
        nodes = [rank // self._ranks_per_node for rank in dist.get_process_group_ranks(group)]
        return Link(group, nodes=nodes if dist.get_world_size() > self._ranks_per_node else None)


def split_by_node(groups: Sequence[Sequence[int]], *, ranks_per_node: int) -> tuple[list[list[int]], list[list[int]]]:
    """Split groups of ranks in two ways: by node, and by place in the node.

    Raises:
        LayoutError: A group has all its ranks in one node, one in each, or not as many in each.
    """
    inside: list[list[int]] = []
    across: list[list[int]] = []
    for group in groups:
        nodes: dict[int, list[int]] = {}
        for rank in group:
            nodes.setdefault(rank // ranks_per_node, []).append(rank)
        sizes = [len(ranks) for ranks in nodes.values()]
        if len(nodes) == 1 or len(set(sizes)) > 1 or sizes[0] == 1:
            shown = "+".join(map(str, sizes))
            raise LayoutError("wire.layers_nodes", ranks=len(group), shown=shown, ranks_per_node=ranks_per_node)
        inside += nodes.values()
        across += [list(ranks) for ranks in zip(*nodes.values(), strict=True)]
    return inside, across


def layered_ratio(num_ranks: int, *, num_nodes: int) -> float:
    """Give the bytes that cross nodes in two layers over those of a flat ring."""
    if num_nodes == 1:
        return math.nan
    return (num_nodes - 1) * num_ranks / (num_nodes * (num_ranks - 1))


def _own_group(groups: Sequence[Sequence[int]]) -> dist.ProcessGroup:
    """Make a group that nobody else uses, so that its collectives meet no others."""
    own, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups])  # type: ignore[no-untyped-call]
    group: dist.ProcessGroup = own
    return group
