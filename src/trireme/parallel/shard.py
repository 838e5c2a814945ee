"""ZeRO: parameters, gradients and optimizer state cut over data-parallel ranks, by torch's ``fully_shard``.

Stage 3 frees a block's whole parameters after its forward and gathers them again for backward. Stages 1 and 2 keep
them from the first forward of a step to its last backward; 2 sums gradients after every micro-batch so that only
shards of them stay, 1 lets them accumulate whole and sums once. A pipeline sums once per stage as well: a stage's
gradients are complete only after its last micro-batch, and by then other stages still compute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard

from trireme.errors import LayoutError
from trireme.mesh import choose_device, wants_pinned_memory
from trireme.parallel.copies import CopySum
from trireme.parallel.fsdp_collective import CountedAllGather, CountedReduceScatter
from trireme.parallel.fsdp_private import (
    Mark,
    OrderedReduction,
    ShardGroup,
    drop_unfinished,
    groups_of,
    keep_modes_out,
    local_shard,
    managed,
    mark_gathered,
    prepare_root,
    set_last,
)
from trireme.parallel.replicate import Reducer
from trireme.parallel.rows import Fill, fill_shards, fill_whole
from trireme.parallel.shard_unit import Units, divide_into_units
from trireme.parallel.traffic import Traffic, TrafficMeter, add_traffic
from trireme.parallel.wire import Wire

ZeroStage = Literal[1, 2, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardWire:
    """How the sums of shards are coded.

    Attributes:
        build_scatter: Makes a unit's sum over shards, given its number. None: as it is.
        copies: Sums over ranks with copies of shards, which ``fully_shard`` then knows nothing of.
        plain: Parameters whose copies are to be summed as they are.
    """

    build_scatter: Callable[[TrafficMeter, int], CountedReduceScatter] | None = None
    copies: Wire | None = None
    plain: Collection[str] = ()


def shard(
    root: nn.Module,
    blocks: Sequence[nn.Module],
    *,
    group: dist.ProcessGroup,
    zero: ZeroStage,
    keep_gathered: bool = False,
    replicate_group: dist.ProcessGroup | None = None,
    whole_group: dist.ProcessGroup | None = None,
    stage_of: Mapping[nn.Module, int] | None = None,
    stages: Collection[int] = (),
    apart: Collection[nn.Parameter] = (),
    param_dtype: torch.dtype | None = None,
    reduce_dtype: torch.dtype | None = None,
    on_gathered: Mark | None = None,
    device: torch.device | None = None,
    reduces_each: bool | None = None,
    wire: ShardWire | None = None,
    on_host: bool = False,
) -> ShardSync:
    """Cut a module's parameters over a group; afterwards they are DTensors cut along dim 0.

    Call it when nothing else will replace parameters (shards of tensor parallelism are in place, plain local ones),
    build the optimizer afterwards, and don't keep references to the old parameters.

    A block that shares a parameter with something outside it joins the root's unit, so that tied stay tied. What
    can't be cut (scalars, the few parameters of another format than their unit) stays whole: ``sync.kept_whole``.
    A block that only some ranks run needs ``keep_gathered`` or zero 1 or 2: its gathers in backward would wait for
    ranks that never come.

    Args:
        root: The whole module; its own unit holds what no block does.
        blocks: Modules to gather one at a time, in order of execution.
        group: Ranks over which to cut (dp_shard x cp).
        zero: Stage.
        keep_gathered: With stage 3, gather once a step instead of twice a micro-batch (for pipelines).
        replicate_group: Ranks that hold copies of the same shard, with ``whole_group``: all ranks of both.
        stage_of: In a pipeline, the stage of each block that only one of this rank's stages runs; gradients are then
            summed once a stage, those of other blocks and of the root with this rank's last one.
        stages: Those of this rank. Default: the values of ``stage_of``.
        apart: Parameters to leave as they are: other stages' absent ones, experts summed over their own copies.
        param_dtype: Format to gather and compute in; shards keep theirs. Buffers and inputs are never cast.
        reduce_dtype: Format to sum gradients in. Default: the one they are computed in.
        device: Where parameters on the meta device will live. Default: where the others are, else this rank's own.
        reduces_each: Sum gradients with every micro-batch, so that only shards of them stay, or once a step. Default:
            with every one for stages 2 and 3, but once in a pipeline.
        wire: Codes the sums.
        on_host: Keep shards and their gradients in host memory; they are gathered from there.
        on_gathered: Called once per parameter with its name and the tensor that forward computes with: an object
            that FSDP keeps, so attributes put on it last.
    """
    assert whole_group is not None or replicate_group is None, "copies of shards need the group of all ranks"
    wire = wire or ShardWire()
    units = divide_into_units(root, blocks, apart=frozenset(apart))
    policy = MixedPrecisionPolicy(param_dtype=param_dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)
    where = device or _device_of(units)
    mesh = data_mesh(group, replicate_group, device_type=where.type)
    names = _names_of(root)
    ignored = {*units.apart, *(parameter for _, parameter in units.kept_whole)}
    reshards = zero == 3 and not keep_gathered
    for module in (*units.blocks, root):
        # None lets FSDP keep the root's own parameters from forward to backward, which follows at once.
        again = None if reshards else False
        fully_shard(
            module,
            mesh=mesh,
            reshard_after_forward=again,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy(pin_memory=wants_pinned_memory(where)) if on_host else OffloadPolicy(),
            ignored_params=ignored,
        )
        keep_modes_out(module)
    sync = ShardSync(
        root,
        units,
        group=group if whole_group is None else whole_group,
        replicate_degree=1 if replicate_group is None else dist.get_world_size(replicate_group),
        reduces_each=(zero >= 2 and stage_of is None) if reduces_each is None else reduces_each,
        keeps=not reshards,
        stage_of=stage_of,
        stages=frozenset(stages or (stage_of or {}).values()),
        reduce_dtype=reduce_dtype,
        wire=wire,
    )
    if on_gathered is not None:
        for module in sync.modules:
            mark_gathered(module, on_gathered, names)
    return sync


def data_mesh(
    group: dist.ProcessGroup, replicate_group: dist.ProcessGroup | None = None, *, device_type: str
) -> DeviceMesh:
    """Give the mesh that ``fully_shard`` wants from groups that exist; no new ones are made."""
    if replicate_group is None:
        return DeviceMesh.from_group(group, device_type, mesh_dim_names=("shard",))
    shards, copies = dist.get_process_group_ranks(group), dist.get_process_group_ranks(replicate_group)
    me = dist.get_rank()
    # Ranks lie on a grid, so each copy's row is this one moved along.
    grid = torch.tensor([[copy + each - me for each in shards] for copy in copies])
    return DeviceMesh.from_group(
        [replicate_group, group], device_type, mesh=grid, mesh_dim_names=("replicate", "shard")
    )


def _device_of(units: Units) -> torch.device:
    return next((each.device for each in units.parameters() if not each.is_meta), None) or choose_device()


def _names_of(root: nn.Module) -> dict[tuple[int, str], str]:
    return {
        (id(owner), name): f"{prefix}.{name}" if prefix else name
        for prefix, owner in root.named_modules()
        for name in owner._parameters
    }


class ShardSync:
    """Drives the shards of one module through a step. Satisfies ``GradientSync``.

    Attributes:
        modules: Units in the order in which backward leaves them, the root last.
        kept_whole: Names of the parameters that every rank holds whole.
        merged: How many blocks joined the root's unit for the parameters they share.
    """

    def __init__(
        self,
        root: nn.Module,
        units: Units,
        *,
        group: dist.ProcessGroup,
        replicate_degree: int,
        reduces_each: bool,
        keeps: bool,
        stage_of: Mapping[nn.Module, int] | None,
        stages: frozenset[int],
        reduce_dtype: torch.dtype | None,
        wire: ShardWire,
    ) -> None:
        self.root = root
        self.modules = (*reversed(units.blocks), root)
        self.kept_whole = tuple(name for name, _ in units.kept_whole)
        self.merged = units.num_merged
        self._group = group
        self._reduces_each = reduces_each
        self._keeps = keeps
        self._stage_of = stage_of
        self._stages = stages
        self._meter = TrafficMeter()
        self._traffic = Traffic()
        self._is_open = False
        self._kept_before: set[int] = set()
        self._reduce_dtype = reduce_dtype
        self._is_coded = wire != ShardWire()
        self._whole = self._build_reducer()
        self._copies = None if wire.copies is None else CopySum(wire.copies, root=root, plain=wire.plain)
        self._order = OrderedReduction(self.modules, on_reduced=None if self._copies is None else self._send_copies)
        self._stages_left: set[int] = set()
        for number, module in enumerate(self.modules):
            scatter = CountedReduceScatter(
                self._meter, copies=replicate_degree, sums_copies=lambda: self._order.is_final
            )
            _configure(
                module,
                CountedAllGather(self._meter),
                scatter if wire.build_scatter is None else wire.build_scatter(self._meter, number),
            )

    def start_step(self, num_microbatches: int = 1) -> None:
        """Begin a step from shards alone: nothing gathered before (evaluation, a step that failed) is used again."""
        prepare_root(self.root)
        if self._is_open:
            drop_unfinished(self.root, self.modules)
        self._is_open = True
        self._meter.restart()
        self._order.restart()
        self._stages_left = set(self._stages)
        set_last(self.root, is_last=False)
        self.release()
        if self._copies is not None:
            self._copies.restart()
        _free_after_backward(self.modules, frees=not self._keeps)
        if self._stage_of is not None:
            # A stage may leave the root's forward half-way, and then no hook gathers its parameters for backward.
            _free_after_backward([self.root], frees=False)
        self._kept_before = {id(parameter) for parameter, _ in managed(self.modules) if parameter.grad is not None}
        self._whole.start_step(num_microbatches)

    def before_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Choose which units sum their gradients in the backward that begins."""
        chosen = self._due(stage, is_last=is_last)
        self._order.arm(chosen, is_final=is_last)
        if is_last:
            _free_after_backward(chosen, frees=True)
        self._whole.before_backward(stage, is_last=is_last)

    def after_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """After a stage's last backward, sum what backward's hooks didn't reach.

        Raises:
            LayoutError: Backward came in halves, but blocks free their parameters in between.
        """
        self._order.flush()  # of a root inside another root, whose end of backward FSDP doesn't tell us
        if is_last:
            pending = [module for module in self._due(stage, is_last=True) if not self._order.is_finished(module)]
            if pending and not self._keeps:
                raise LayoutError("parallel.zero_halves")
            _free_after_backward(pending, frees=True)
            self._order.arm(pending, is_final=True)
            self._order.flush()
            self._stages_left.discard(stage)
        self._whole.after_backward(stage, is_last=is_last)

    def finish(self) -> None:
        """Wait for all sums; parameters without gradient on any rank get None again."""
        self._meter.end_backward(device=self._device)
        self._order.conclude()
        if self._copies is not None:
            self._copies.finish()
            self._meter.add_sent(*self._copies.wire.take())
        self._drop_empty()
        self._whole.finish()
        self._traffic = add_traffic([self._meter.read(), self._whole.traffic])
        self._is_open = False

    @property
    def traffic(self) -> Traffic:
        """What the last step sent.

        FSDP's collectives are timed where the host waits for them; on a device they run on streams of their own.
        """
        return self._traffic

    @property
    def _device(self) -> torch.device:
        return next((parameter.device for parameter, _ in managed(self.modules)), torch.device("cpu"))

    def _send_copies(self, index: int, unit: ShardGroup) -> None:
        assert self._copies is not None
        self._copies.send(index, unit, self._meter)

    def _has_rest(self, parameter: nn.Parameter) -> bool:
        return self._is_coded and parameter.grad is not None and bool(local_shard(parameter.grad).any())

    def release(self) -> None:
        """Free what an evaluation gathered, so that the module's parameters are its shards again."""
        for module in self.modules:
            assert isinstance(module, FSDPModule)
            module.reshard()

    def materialise(self, *, device: torch.device, fill: Fill) -> None:
        """Give a module that was sharded on the meta device real values, one shard after the other; ties stay.

        No rank ever holds a whole parameter unless ``fill`` makes one. Buffers are left to the caller. Optimizers
        are built afterwards.
        """
        names = {id(parameter): name for name, parameter in self.root.named_parameters()}
        fill_shards(self.modules, names, device=device, fill=fill)
        fill_whole(self.root, self.kept_whole, device=device, fill=fill)
        self._whole.close()
        self._whole = self._build_reducer()

    def _build_reducer(self) -> Reducer:
        kept = [(name, self.root.get_parameter(name)) for name in self.kept_whole]
        return Reducer(kept, group=self._group, reduce_dtype=self._reduce_dtype)

    def _due(self, stage: int, *, is_last: bool) -> list[nn.Module]:
        """Give the units whose gradients are to be summed with this backward, in order."""
        if not is_last and not self._reduces_each:
            return []
        if self._stage_of is None:
            return list(self.modules)
        # What several stages of this rank read (the root's: ties, first and last stage here; blocks run again deeper)
        # is complete with the last of them.
        is_end = self._stages_left <= {stage}
        due = {stage, None} if is_end else {stage}
        return [module for module in self.modules if self._stage_of.get(module) in due]

    def _drop_empty(self) -> None:
        """Put None where FSDP summed zeros: an optimizer must not touch what has no gradient on any rank."""
        records = list(managed(self.modules))
        # A code may have kept something of earlier gradients for a parameter that has none now.
        has = [id(record) in self._order.with_grad or self._has_rest(parameter) for parameter, record in records]
        mask = torch.tensor(has, dtype=torch.uint8)
        if not records:
            return
        mask = mask.to(records[0][0].device)
        self._meter.count("agree", mask.numel(), degree=dist.get_world_size(self._group))
        dist.all_reduce(mask, op=dist.ReduceOp.MAX, group=self._group)
        for (parameter, _), is_there in zip(records, mask.tolist(), strict=True):
            if not is_there and id(parameter) not in self._kept_before:
                parameter.grad = None


def _free_after_backward(modules: Sequence[nn.Module], *, frees: bool) -> None:
    for module in modules:
        assert isinstance(module, FSDPModule)
        module.set_reshard_after_backward(frees, recurse=False)


def _configure(module: nn.Module, gather: CountedAllGather, scatter: CountedReduceScatter) -> None:
    assert isinstance(module, FSDPModule)
    # Sums, never averages: the loss is divided by the global count before backward.
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)
    module.set_reduce_scatter_unused_params(True, recurse=False)
    if groups_of(module):
        module.set_custom_all_gather(gather)  # type: ignore[arg-type]
        module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
