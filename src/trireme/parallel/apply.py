"""From a plain module to one rank's share of it. This file alone fixes the order of the transforms.

1. Deal experts out, so that everything after sees the experts of a layer as one operation.
2. Trace the whole module on fake tensors: everything later asks what the user's code does, not what it is called.
3. Plan tensor parallelism, on the whole module: shapes and ties are still the user's.
4. Cut the pipeline's stages: parameters of other stages go before anything is allocated for them.
5. Cut parameters over tp into plain local ones: ZeRO then cuts what is left, whatever it is.
6. Have the blocks' forwards compiled (compile.py), then wrap them in recomputation, inside of everything ZeRO does
   around a block: what is computed again must find the same gathered parameters.
7. Shard over data-parallel ranks last, for its hooks must stand around the whole block.

A module on the meta device stays there until what a rank holds is settled: its parameters get values where they are
cut last, after 5 or after 7.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import (
    Binding,
    ContextBinding,
    CountedRandomness,
    HostGenerators,
    InitialValues,
    Line,
    TensorPlan,
    bind,
    fill_buffers,
    fill_parameters,
    has_meta,
    plan_tensor_parallel,
    shard_parameters,
)
from trireme.mesh import LaunchEnvironment, choose_device
from trireme.parallel.agreement import check_carried, check_kept, check_statistics, make_equal
from trireme.parallel.axes import Axes, as_line
from trireme.parallel.axis_traffic import AxisTraffic
from trireme.parallel.block_work import BlockWork
from trireme.parallel.branch import RouteAgreement
from trireme.parallel.call import Call, call_by_name
from trireme.parallel.capture import ModelTrace, capture, choose_cuts
from trireme.parallel.communication import Communication
from trireme.parallel.compile import Compile
from trireme.parallel.expert import DealtExperts, deal_experts
from trireme.parallel.expert_find import find_experts
from trireme.parallel.expert_route import ExpertRanks
from trireme.parallel.fullest_walk import FullestWalk, walk_fullest
from trireme.parallel.inventory import Holding, Inventory, expert_holding, holding_of
from trireme.parallel.keep import KeptNumbers, attributes_kept
from trireme.parallel.model import HowItRuns, LossFn, ParallelModel, Runner
from trireme.parallel.piece import narrow_ranges
from trireme.parallel.pipeline import Executor
from trireme.parallel.recompute_block import Recompute, RecomputeRule
from trireme.parallel.rows import Fill
from trireme.parallel.runner import PipelineRunner, PlainRunner
from trireme.parallel.share_data import DataSharing
from trireme.parallel.stage import StageSet
from trireme.parallel.surroundings import Surroundings
from trireme.parallel.sync import GradientSync
from trireme.parallel.tie import TiedGradients
from trireme.parallel.transport import Lane
from trireme.parallel.unit import move_real
from trireme.parallel.wires import Wires
from trireme.plan import Layout, ModelFacts, parse_layout, require_legal, stages_of_rank
from trireme.words import say

Notice = Callable[[str], None]


def parallelize(
    module: nn.Module,
    layout: Layout | str,
    *,
    example: Mapping[str, Any],
    call: Call = call_by_name,
    loss_fn: LossFn | None = None,
    cuts: tuple[str, ...] = (),
    recompute: Mapping[str, Recompute] | RecomputeRule | None = None,
    compiled: Compile = "none",
    parameters_on_host: bool = False,
    device: torch.device | None = None,
    seed: int = 0,
    communication: Communication | None = None,
    notice: Notice = warnings.warn,
) -> ParallelModel:
    """Spread a plain module over the ranks of the process group, in place.

    Args:
        module: Unmodified; the same on every rank, or it becomes rank 0's. On the meta device each rank makes only
            what it will hold, with the numbers that ``materialise`` gives one device.
        layout: How to spread it.
        example: A short batch of the kind that will come; only its shapes and kinds count.
        call: How the module is called with a batch.
        loss_fn: ``(outputs, batch) -> (loss_sum, count)``. Given, the output layer may stay cut up to the loss.
        cuts: Paths of the blocks at which stages 1, 2 ... begin. Default: balanced by cost.
        recompute: What single blocks recompute, by path or by a rule. Default: what the layout says, for all. Modules
            that are marked (``trireme.recompute``) recompute what their mark says.
        parameters_on_host: With zero3, keep shards of weights and gradients in host memory.
        compiled: Whether each block runs as one compiled program; what can't runs as written, and is told.
        device: What this rank computes on. Default: what it has.
        seed: Decides what dropout and the like draw, and the first values of a module on meta.
        communication: How gradients and weights travel. Default: as they are, with every update.
        notice: Told of everything a person should know.

    Raises:
        LayoutError: The layout doesn't fit the world or the module; the message says what does.
    """
    if isinstance(layout, str):
        layout = parse_layout(layout, ranks=dist.get_world_size()).layout
    axes = Axes(layout, device=device or choose_device())
    if parameters_on_host and layout.zero < 3:
        raise LayoutError("parallel.parameters_need_zero3", layout=layout)
    wires = Wires(
        communication or Communication(),
        layout,
        device=axes.device,
        ranks_per_node=LaunchEnvironment.from_environ().local_world_size,
    )
    building = _Building(
        module, axes, example=example, call=call, loss_fn=loss_fn, seed=seed, wires=wires, notice=notice
    )
    building.on_host = parameters_on_host
    return building.build(cuts, recompute or {}, compiled)


class _Building:
    """What the transforms share, in the order in which they run."""

    def __init__(
        self,
        module: nn.Module,
        axes: Axes,
        *,
        example: Mapping[str, Any],
        call: Call,
        loss_fn: LossFn | None,
        seed: int,
        wires: Wires,
        notice: Notice,
    ) -> None:
        self.wires = wires
        self.plain: frozenset[str] = frozenset()
        self.expert_line: Line | None = None
        self.module = module
        self.axes = axes
        self.layout = axes.layout
        self.example = example
        self.call = call
        self.loss_fn = loss_fn
        self.on_host = False
        self.seed = seed
        self.notices: list[str] = []
        self._notice = notice
        self.shapes = {name: tuple(each.shape) for name, each in module.named_parameters()}
        self.initial = InitialValues(module, seed=seed) if has_meta(module) else None
        self.host = HostGenerators(module, seed=seed)

    def build(
        self, cuts: tuple[str, ...], recompute: Mapping[str, Recompute] | RecomputeRule, compiled: Compile
    ) -> ParallelModel:
        """Run all transforms."""
        num_parts = self.layout.dp * self.layout.cp * self.layout.num_microbatches
        check_statistics(self.module, num_parts=num_parts)
        self.fill_buffers()
        make_equal(self.module, notice=self.notice)
        whole_numel = sum(each.numel() for each in self.module.parameters())
        dealt = self.deal_experts()
        walk = self.capture()
        trace = walk.trace
        # A module without blocks is one piece.
        pieces = max(1, len(trace.blocks))
        check_kept(trace.statistics, num_parts=num_parts)
        check_carried(trace.carried, num_parts=num_parts, num_stages=self.layout.num_stages)
        self.tell_branches(trace)
        require_legal(self.layout, ModelFacts(num_layers=pieces, ranks=self.layout.world_size))
        with walk.deciding, attributes_kept(self.module):
            tensor_plan = self.plan_tensor()
        stages = self.cut_stages(trace, cuts)
        move_real(self.module, device=self.axes.device)
        fill = functools.partial(self.fill, plan=tensor_plan, dealt=dealt)
        self.plain = frozenset(name for name in self.shapes if self.is_shared_in_part(name, tensor_plan))
        binding = self.cut_tensors(tensor_plan, fill)
        agreement = self.agree_on_route(trace)
        surroundings = Surroundings(
            binding=binding,
            context=self.bind_context(),
            randomness=self.count_randomness(),
            numbers=KeptNumbers(trace.numbers),
            route=agreement,
        )
        work = BlockWork(module=self.module, trace=trace, axes=self.axes, notice=self.notice)
        compiler = work.compile(compiled, surroundings=surroundings, stages=stages, dealt=dealt)
        blocks = work.recompute(recompute)
        sharing = DataSharing(
            module=self.module,
            axes=self.axes,
            wires=self.wires,
            plain=self.plain,
            is_hollow=self.initial is not None,
            on_host=self.on_host,
        )
        sync = sharing.share(blocks, stages, binding, dealt, fill)
        if agreement is not None:
            agreement.attach(self.module, work.blocks())
        runner, holders = self.build_runner(stages, surroundings, sync)
        holdings = {
            name: self.holding(name, shape, tensor_plan, dealt, num_stages=len(holders.get(name, (0,))))
            for name, shape in self.shapes.items()
        }
        self.wires.part_ways(list(self.module.named_parameters()))
        self.tell_wire()
        inventory = Inventory(self.module, holdings, axes=self.axes, whole_numel=whole_numel)
        traffic = self.watch_traffic(binding, surroundings.context, runner, sync)
        how = HowItRuns(path="interpreter", notices=tuple(self.notices), whole=surroundings.whole, compiler=compiler)
        return ParallelModel(
            self.module, axes=self.axes, runner=runner, inventory=inventory, how=how, wires=self.wires, traffic=traffic
        )

    def is_shared_in_part(self, name: str, plan: TensorPlan | None) -> bool:
        """Tell whether other tensor-parallel ranks hold some of this rank's share: they must get the same gradient."""
        split = None if plan is None else plan.parameters.get(name)
        if split is None or split.split is None:
            return False
        return any(split.split.kept_ranges(rank) for rank in range(self.layout.tp))

    def tell_wire(self) -> None:
        """Say what the wire does, where it isn't what everybody expects."""
        asked = self.wires.asked
        if asked.is_compressed and self.wires.codes_nothing:
            self.notice(say("wire.nothing_to_code", compress=asked.compress, layout=self.layout))
        elif asked.is_compressed:
            self.notice(say("wire.codes", compress=asked.compress, axes="+".join(self.wires.coded_axes)))
        if asked.layered:
            self.notice(self.wires.tell_layers())

    def watch_traffic(
        self,
        binding: Binding | None,
        context: ContextBinding | None,
        runner: Runner,
        sync: GradientSync,
    ) -> AxisTraffic:
        """Count what each axis sends."""
        lines: dict[str, Line] = {}
        if binding is not None:
            lines["tp"] = binding.interpreter.line
        if context is not None:
            lines["cp"] = context.interpreter.line
        if self.expert_line is not None:
            lines["ep"] = self.expert_line
        sent_on = {}
        if isinstance(runner, PipelineRunner):
            sent_on["pp"] = lambda: runner.executor.transport.sent_bytes + runner.ties.sent_bytes
        return AxisTraffic(sync, lines=lines, sent_on=sent_on, wires=self.wires)

    def capture(self) -> FullestWalk:
        """Walk through the module as the user's code goes."""
        assumes = self.layout.num_stages == 1
        return walk_fullest(lambda: capture(self.module, self.example, call=self.call, assumes=assumes), host=self.host)

    def tell_branches(self, trace: ModelTrace) -> None:
        """Tell where each part of the batch decides for itself which way it takes."""
        parts = self.layout.dp * self.layout.num_microbatches
        for line in trace.branches if parts > 1 else ():
            self.notice(say("ranks.route_by_rows", line=line, parts=parts))

    def agree_on_route(self, trace: ModelTrace) -> RouteAgreement | None:
        """Have parts of the batch find out where one takes another way."""
        if not trace.branches or self.layout.dp * self.layout.cp * self.layout.num_microbatches == 1:
            return None
        group, device = self.axes["dp_cp"].group, self.axes.device
        return RouteAgreement(trace.blocks, line=trace.branches[0], group=group, device=device)

    def holding(
        self,
        name: str,
        shape: tuple[int, ...],
        plan: TensorPlan | None,
        dealt: DealtExperts | None,
        *,
        num_stages: int,
    ) -> Holding:
        """Describe what this rank holds of a parameter."""
        if dealt is not None and name in dealt.parameters | dealt.absent:
            return expert_holding(name, rows=dealt.rows.get(name), shape=shape, axes=self.axes)
        split = plan.parameters.get(name) if plan else None
        return holding_of(name, split=split, shape=shape, axes=self.axes, num_stages=num_stages)

    def fill_buffers(self) -> None:
        """Give buffers on meta their values: they are small, and code may ask for them while it is traced."""
        if self.initial is None:
            return
        if not self.initial.was_seen:
            self.notice(say("initial.unseen", module=type(self.module).__name__))
        fill_buffers(self.module, self.initial)

    def fill(
        self, name: str, target: Tensor, offset: int = 0, *, plan: TensorPlan | None, dealt: DealtExperts | None
    ) -> None:
        """Give a parameter on meta its values: the rows from an offset on of what this rank holds before ZeRO."""
        assert self.initial is not None, "only what is on meta is filled"
        ranges = self.holding(name, self.shapes[name], plan, dealt, num_stages=1).ranges
        if target.dim():
            ranges = (narrow_ranges(ranges[0], start=offset, length=target.shape[0]), *ranges[1:])
        self.initial.fill(name, target, ranges=ranges)

    def deal_experts(self) -> DealtExperts | None:
        """Keep this rank's experts; None where all ranks have all."""
        if self.layout.ep == 1:
            return None
        found = find_experts(self.module)
        if not found.sets:
            raise LayoutError("ranks.no_experts", ep=self.layout.ep, kind=type(self.module).__name__)
        for path, reason in found.whole.items():
            self.notice(say("ranks.experts_whole", path=path, reason=reason))
        ranks = ExpertRanks(ep=as_line(self.axes["ep"]), tp=as_line(self.axes["tp"]))
        self.expert_line = ranks.ep
        return deal_experts(self.module, ranks, found=found)

    def count_randomness(self) -> CountedRandomness:
        """Draw random numbers as one device does."""
        ranks = {axis: self.axes[axis].rank for axis in ("tp", "cp")}
        return CountedRandomness(self.module, seed=self.seed, ranks=ranks, notice=self.notice)

    def bind_context(self) -> ContextBinding | None:
        """Cut sequences over cp; None on one rank."""
        if self.layout.cp == 1:
            return None
        return ContextBinding(self.axes["cp"].group, kind=self.layout.cp_kind, notice=self.notice)

    def notice(self, text: str) -> None:
        """Tell, and keep for the record."""
        self.notices.append(text)
        self._notice(text)

    def plan_tensor(self) -> TensorPlan | None:
        """Decide how parameters are cut over tp; None on one rank."""
        if self.layout.tp == 1:
            return None
        loss = None if self.loss_fn is None else self._loss_of_example
        return plan_tensor_parallel(
            self.module,
            self.example,
            degree=self.layout.tp,
            loss_fn=loss,
            call=self.call,
            sequence_parallel=self.layout.sp,
        )

    def _loss_of_example(self, outputs: Any) -> Tensor:
        assert self.loss_fn is not None
        return cast(Tensor, self.loss_fn(outputs, self.example)[0])

    def cut_tensors(self, plan: TensorPlan | None, fill: Fill) -> Binding | None:
        """Replace parameters by this rank's shares; unless ZeRO will cut them, they get their values."""
        line = self.axes["tp"]
        if plan is not None:
            shard_parameters(self.module, plan, rank=line.rank)
        if self.initial is not None and not self.layout.zero:
            fill_parameters(self.module, lambda name, target: fill(name, target, 0), device=self.axes.device)
        return None if plan is None else bind(self.module, plan, line.group, notice=self.notice)

    def cut_stages(self, trace: ModelTrace, cuts: tuple[str, ...]) -> StageSet | None:
        """Keep this rank's stages of the pipeline; None without one."""
        layout = self.layout
        if layout.pp == 1 and layout.vp == 1:
            return None
        chosen = cuts or choose_cuts(trace, num_stages=layout.num_stages)
        own = stages_of_rank(self.axes["pp"].rank, name=layout.schedule, pp=layout.pp, vp=layout.vp)
        return StageSet(
            self.module,
            trace,
            cuts=chosen,
            stages=own,
            num_stages=layout.num_stages,
            call=self.call,
            device=self.axes.device,
        )

    def build_runner(
        self, stages: StageSet | None, surroundings: Surroundings, sync: GradientSync
    ) -> tuple[Runner, Mapping[str, tuple[int, ...]]]:
        """Make what runs a step; also which ranks of the pipeline hold what is tied."""
        if stages is None:
            return PlainRunner(self.module, call=self.call, surroundings=surroundings, sync=sync), {}
        layout, line = self.layout, self.axes["pp"]
        lane = Lane(forth=line.group, back=self.axes.second_group("pp"), device=self.axes.device)
        executor = Executor(stages, lane=lane, schedule=layout.schedule, vp=layout.vp, sync=sync)
        ties = TiedGradients(stages, lane=lane, schedule=executor.schedule(layout.num_microbatches))
        return PipelineRunner(executor, surroundings=surroundings, sync=sync, ties=ties), ties.holders
