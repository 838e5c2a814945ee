"""The axes of a layout as this rank sees them: for each, the ranks it talks to and its place among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from trireme.errors import LayoutError
from trireme.interpret import CollectiveCount, Line
from trireme.plan import AXES, Axis, Layout, expert_copies, expert_groups, groups_of

AxisName = Literal["pp", "dp_replicate", "dp_shard", "cp", "tp", "dp", "dp_cp", "dp_shard_cp", "ep", "expert_copies"]
"""An axis, or several that act as one.

``dp``: ranks with other samples. ``dp_cp``: ranks whose weight gradients add up. ``dp_shard_cp``: ranks over which
ZeRO cuts. ``ep``: ranks that share out the experts. ``expert_copies``: ranks of a stage that hold the same experts.
"""

_JOINED: dict[AxisName, tuple[str, ...]] = {
    "dp": ("dp_replicate", "dp_shard"),
    "dp_cp": ("dp_replicate", "dp_shard", "cp"),
    "dp_shard_cp": ("dp_shard", "cp"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisLine:
    """The ranks of one axis as seen from one of them; an axis of degree 1 is a group of one."""

    group: dist.ProcessGroup
    rank: int
    degree: int


class Axes:
    """Groups of ranks for every axis of a layout; every rank of the world builds them together.

    Attributes:
        layout: The degrees.
        rank: This rank in the world.
        device: What it computes on.
        mesh: All ranks, pp slowest and tp fastest.

    Raises:
        LayoutError: The world has another number of ranks than the layout needs.
    """

    def __init__(self, layout: Layout, *, device: torch.device) -> None:
        world = dist.get_world_size()
        if layout.world_size != world:
            raise LayoutError("ranks.other_world", layout=layout, needs=layout.world_size, world=world)
        self.layout = layout
        self.device = device
        self.rank = dist.get_rank()
        degrees = tuple(getattr(layout, axis) for axis in AXES)
        self.mesh: DeviceMesh = init_device_mesh(device.type, degrees, mesh_dim_names=AXES)
        self._lines: dict[AxisName, AxisLine] = {}
        for line, axes in _JOINED.items():
            self._lines[line] = _line(self.joined_mesh(line, axes))
        # Experts lie across several axes, so their groups are no sub-mesh; every rank must make all of them.
        self._lines["ep"] = _enumerated(expert_groups(layout))
        self._lines["expert_copies"] = _enumerated(expert_copies(layout))

    def joined_mesh(self, line: AxisName, axes: tuple[str, ...] | None = None) -> DeviceMesh:
        """Give several axes as a mesh of one dim."""
        return self.mesh[axes or _JOINED[line]]._flatten(f"{line}_joined")

    def second_group(self, axis: Axis) -> dist.ProcessGroup:
        """Make another group of the same ranks: sends against each other must not wait for each other."""
        return _enumerated(groups_of(self.layout, axis)).group

    def __getitem__(self, line: AxisName) -> AxisLine:
        if line not in self._lines:
            self._lines[line] = _line(self.mesh[line])
        return self._lines[line]


def _line(mesh: DeviceMesh) -> AxisLine:
    return AxisLine(group=mesh.get_group(), rank=mesh.get_local_rank(), degree=mesh.size())


def _enumerated(groups: tuple[tuple[int, ...], ...]) -> AxisLine:
    own, _ = dist.new_subgroups_by_enumeration([list(group) for group in groups])  # type: ignore[no-untyped-call]
    return AxisLine(group=own, rank=dist.get_rank(own), degree=dist.get_world_size(own))


def as_line(line: AxisLine, *, count: CollectiveCount | None = None) -> Line:
    """Give an axis as the interpreter counts it."""
    return Line(rank=line.rank, degree=line.degree, group=line.group, count=count or CollectiveCount())
