"""What data-parallel ranks do with parameters: sum gradients of whole copies, or cut everything over themselves."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from trireme.interpret import Binding
from trireme.mesh import host_device
from trireme.parallel.axes import Axes
from trireme.parallel.expert import DealtExperts
from trireme.parallel.replicate import Reducer, replicate
from trireme.parallel.rows import Fill
from trireme.parallel.shard import ZeroStage, shard
from trireme.parallel.stage import StageSet
from trireme.parallel.sync import GradientSync, SyncTogether
from trireme.parallel.wires import Wires


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSharing:
    """How this rank's share of a module is shared out once more, over data-parallel ranks.

    Attributes:
        module: With only what this rank holds before.
        axes: Of the layout.
        wires: How gradients travel.
        plain: Names of parameters whose gradients must travel as they are.
        is_hollow: Whether parameters are on meta, to be filled where they are cut last.
        on_host: Keep shards in host memory.
    """

    module: nn.Module
    axes: Axes
    wires: Wires
    plain: frozenset[str]
    is_hollow: bool
    on_host: bool

    def share(
        self,
        blocks: list[nn.Module],
        stages: StageSet | None,
        binding: Binding | None,
        dealt: DealtExperts | None,
        fill: Fill,
    ) -> GradientSync:
        """Sum gradients over data-parallel ranks, or cut everything over them; experts over ranks with the same."""
        experts = self._share_experts(stages, dealt, fill)
        owned = list(self.module.named_parameters())
        names = frozenset() if dealt is None else dealt.parameters
        if self.axes.layout.zero == 0:
            dense: GradientSync = self._replicate_dense([each for each in owned if each[0] not in names])
        else:
            dense = self._shard_dense(
                blocks, stages, binding, fill, apart=[parameter for name, parameter in owned if name in names]
            )
        return SyncTogether(dense, *experts) if experts else dense

    def _replicate_dense(self, parameters: list[tuple[str, nn.Parameter]]) -> Reducer:
        """Sum gradients of whole copies, but for those that replicas keep to themselves."""
        line = self.axes["dp_shard_cp"] if self.wires.asked.is_local else self.axes["dp_cp"]
        reducer = replicate(
            self.module,
            parameters,
            group=line.group,
            bucket_bytes=self.wires.asked.bucket_bytes,
            reduce_dtype=_reduce_dtype(self.module),
            exchange=self.wires.exchange("dense"),
            plain=self.plain,
        )
        self.wires.remember("dense", reducer)
        return reducer

    def _share_experts(self, stages: StageSet | None, dealt: DealtExperts | None, fill: Fill) -> list[GradientSync]:
        """Sum gradients of experts over the ranks that hold the same ones, or cut each layer's over them.

        They come before everything else: the unit around them must find them already cut.
        """
        if dealt is None:
            return []
        if self.axes.layout.zero == 0:
            own = [(name, each) for name, each in self.module.named_parameters() if name in dealt.parameters]
            reducer = replicate(
                self.module,
                own,
                group=self.axes["expert_copies"].group,
                bucket_bytes=self.wires.asked.bucket_bytes,
                reduce_dtype=_reduce_dtype(self.module),
                exchange=self.wires.exchange("experts"),
            )
            self.wires.remember("experts", reducer)
            return [reducer]
        paths = [path for paths in dealt.units for path in paths]
        held = [path for path in paths if next(self.module.get_submodule(path).parameters(), None) is not None]
        return [self._shard_experts(path, stages, fill) for path in held]

    def _shard_experts(self, path: str, stages: StageSet | None, fill: Fill) -> GradientSync:
        """Cut a module of this rank's experts over the ranks that hold the same ones."""
        unit = self.module.get_submodule(path)
        sync = shard(
            unit,
            [],
            group=self.axes["expert_copies"].group,
            zero=cast(ZeroStage, self.axes.layout.zero),
            keep_gathered=self.axes.layout.pp > 1,
            stage_of=_stages_of([unit], stages),
            stages=() if stages is None else stages.stages,
            reduce_dtype=_reduce_dtype(unit),
            device=self.axes.device,
            reduces_each=self.wires.reduces_each(has_stages=stages is not None),
            on_host=self.on_host,
        )
        if self.is_hollow:
            prefix = f"{path}." if path else ""
            sync.materialise(
                device=self._shard_device, fill=lambda name, target, offset: fill(prefix + name, target, offset)
            )
        return sync

    def _shard_dense(
        self,
        blocks: list[nn.Module],
        stages: StageSet | None,
        binding: Binding | None,
        fill: Fill,
        *,
        apart: Collection[nn.Parameter],
    ) -> GradientSync:
        """Cut everything but experts over the ranks of ZeRO."""
        copies = self.axes["dp_replicate"]
        wire = self.wires.shard_wire("dense", plain=self.plain)
        sums_copies = copies.degree > 1 and not self.wires.asked.is_local
        by_itself = sums_copies and (wire is None or wire.copies is None)
        sync = shard(
            self.module,
            blocks,
            group=self.axes["dp_shard_cp"].group,
            zero=cast(ZeroStage, self.axes.layout.zero),
            keep_gathered=self.axes.layout.pp > 1,
            replicate_group=copies.group if by_itself else None,
            whole_group=self.axes["dp_cp"].group if sums_copies else None,
            stage_of=_stages_of(blocks, stages),
            stages=() if stages is None else stages.stages,
            apart=apart,
            reduce_dtype=_reduce_dtype(self.module),
            on_gathered=None if binding is None else binding.mark_one,
            device=self.axes.device,
            reduces_each=self.wires.reduces_each(has_stages=stages is not None),
            wire=wire,
            on_host=self.on_host,
        )
        if self.is_hollow:
            sync.materialise(device=self._shard_device, fill=fill)
        return sync

    @property
    def _shard_device(self) -> torch.device:
        return host_device() if self.on_host else self.axes.device


def _reduce_dtype(module: nn.Module) -> torch.dtype | None:
    """Format in which gradients are summed over ranks: 16 bits would round each addend away, one after the other."""
    is_short = any(each.dtype in (torch.bfloat16, torch.float16) for each in module.parameters())
    return torch.float32 if is_short else None


def _stages_of(modules: list[nn.Module], stages: StageSet | None) -> dict[nn.Module, int] | None:
    """Give the stage of each module that only one of this rank's stages runs; None without a pipeline."""
    if stages is None:
        return None
    found = ((module, stages.stage_of(module)) for module in modules)
    return {module: stage for module, stage in found if stage is not None}
