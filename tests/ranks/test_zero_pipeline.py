"""Several stages on one rank, micro-batches in flight together: gradients summed once per stage, exactly."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trireme.errors import LayoutError
from trireme.mesh import run_on_ranks
from trireme.parallel import replicate, shard
from trireme.plan import ModelFacts, check_layout, parse_layout

sys.path.insert(0, str(Path(__file__).parent))
from data_parallel_models import Tied, build, global_batch, loss_sum

_ERROR = 1e-12
"""fp64, sums in another order."""

_MICROBATCHES = 3


class _Left(Exception):
    """Carries a stage's output out of the root's forward."""

    def __init__(self, x):
        self.x = x


class _Staged(Tied):
    """The model cut after its first block; one way to leave a stage is by an exception."""

    def forward(self, ids, stage, x=None, leaves_by_exception=False):
        if stage == 0:
            x = self.embedding(ids) + self.position(ids % 3) + self.frozen.sum(0)
            x = self.blocks[0](x)
            if leaves_by_exception:
                raise _Left(x)
            return x
        for block in self.blocks[1:]:
            x = block(x)
        return self.head(self.norm(x))


def _build_staged():
    module = build(has_experts=True)
    module.__class__ = _Staged
    return module


class _Run:
    """Forwards and backwards of two stages that one rank holds, in any order."""

    def __init__(self, module, sync, rows, count, *, leaves_by_exception):
        self.module, self.sync, self.count = module, sync, count
        self.ids, self.targets = rows
        self.leaves_by_exception = leaves_by_exception
        self.between, self.received, self.losses = {}, {}, {}

    def forward(self, stage, micro):
        ids = self.ids[micro : micro + 1]
        if stage == 0:
            try:
                self.between[micro] = self.module(ids, 0, leaves_by_exception=self.leaves_by_exception)
            except _Left as left:
                self.between[micro] = left.x
            return
        self.received[micro] = self.between[micro].detach().requires_grad_()
        logits = self.module(ids, 1, self.received[micro])
        self.losses[micro] = loss_sum(logits, self.targets[micro : micro + 1]) / self.count

    def backward(self, stage, micro, *, is_last):
        self.sync.before_backward(stage, is_last=is_last)
        if stage == 1:
            self.losses[micro].backward()
        else:
            self.between[micro].backward(self.received[micro].grad)
        self.sync.after_backward(stage, is_last=is_last)

    def backward_in_halves(self, stage, micros):
        """Inputs of all micro-batches first, then weights of all, as a zero-bubble schedule may."""
        for micro in micros:
            self.sync.before_backward(stage, is_last=False)
            if stage == 1:
                (grad,) = torch.autograd.grad(self.losses[micro], self.received[micro], retain_graph=True)
                self.received[micro].grad = grad
            self.sync.after_backward(stage, is_last=False)
        for micro in micros:
            self.sync.before_backward(stage, is_last=False)
            weights = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            output = self.losses[micro] if stage == 1 else self.between[micro]
            given = None if stage == 1 else self.received[micro].grad
            for weight, grad in zip(
                weights, torch.autograd.grad(output, weights, given, allow_unused=True), strict=True
            ):
                if grad is not None:
                    weight.grad = grad if weight.grad is None else weight.grad + grad
            self.sync.after_backward(stage, is_last=False)
        self.sync.after_backward(stage, is_last=True)


def _interleaved(run):
    run.forward(0, 0)
    run.forward(0, 1)
    run.forward(1, 0)
    run.backward(1, 0, is_last=False)
    run.forward(0, 2)
    run.forward(1, 1)
    run.forward(1, 2)
    run.backward(0, 0, is_last=False)
    run.backward(1, 1, is_last=False)
    run.backward(1, 2, is_last=True)
    run.backward(0, 1, is_last=False)
    run.backward(0, 2, is_last=True)


def _zero_bubble(run):
    for stage in (0, 1):
        for micro in range(_MICROBATCHES):
            run.forward(stage, micro)
    run.backward_in_halves(1, range(_MICROBATCHES))
    run.backward_in_halves(0, range(_MICROBATCHES))


def _check(*, zero, keep_gathered, schedule, leaves_by_exception):
    reference, module = build(has_experts=True), _build_staged()
    world, rank = dist.get_world_size(), dist.get_rank()
    stage_of = {block: min(number, 1) for number, block in enumerate(module.blocks)}
    if zero == 0:
        sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2000)
    else:
        sync = shard(
            module,
            list(module.blocks),
            group=dist.group.WORLD,
            zero=zero,
            keep_gathered=keep_gathered,
            stage_of=stage_of,
        )
    for step in range(2):
        ids, targets = global_batch(step, rows=world * _MICROBATCHES)
        count = (targets != -100).sum()
        for row in range(len(ids)):
            (loss_sum(reference(ids[row : row + 1]), targets[row : row + 1]) / count).backward()
        own = slice(rank * _MICROBATCHES, (rank + 1) * _MICROBATCHES)
        run = _Run(module, sync, (ids[own], targets[own]), count, leaves_by_exception=leaves_by_exception)
        sync.start_step(_MICROBATCHES)
        schedule(run)
        sync.finish()
        for (name, one), parameter in zip(reference.named_parameters(), module.parameters(), strict=True):
            assert (parameter.grad is None) == (one.grad is None), name
            if one.grad is not None:
                whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
                assert (whole - one.grad).abs().max() <= _ERROR, name
                parameter.grad = one.grad = None
    return sync.traffic


@pytest.mark.parametrize("leaves_by_exception", [False, True])
@pytest.mark.parametrize(("zero", "keep_gathered"), [(0, False), (1, False), (2, False), (3, True), (3, False)])
def test_interleaved_stages_on_a_rank_sum_each_gradient_once(zero, keep_gathered, leaves_by_exception):
    run_on_ranks(
        _check,
        2,
        zero=zero,
        keep_gathered=keep_gathered,
        schedule=_interleaved,
        leaves_by_exception=leaves_by_exception,
    )


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_backward_in_halves_sums_each_gradient_once(zero):
    run_on_ranks(_check, 2, zero=zero, keep_gathered=True, schedule=_zero_bubble, leaves_by_exception=False)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_pipeline_sums_once_a_step_and_gathers_once(zero):
    """Two units of stage 1, one of stage 0, the root's: four sums and, kept gathered, four gathers."""
    (traffic, _) = run_on_ranks(
        _check, 2, zero=zero, keep_gathered=True, schedule=_interleaved, leaves_by_exception=False
    )
    assert traffic.calls["reduce_scatter"] == traffic.calls["all_gather"] == 4


def _halves_while_blocks_are_freed():
    with pytest.raises(LayoutError, match="zero2"):
        _check(zero=3, keep_gathered=False, schedule=_zero_bubble, leaves_by_exception=False)


def test_backward_in_halves_is_refused_where_blocks_free_their_parameters():
    run_on_ranks(_halves_while_blocks_are_freed, 2)


def test_the_plan_refuses_zero_bubble_with_zero3_and_says_why():
    layout = parse_layout("pp=2,dp=2,zero3,schedule=zb", ranks=4).layout
    found = check_layout(layout, ModelFacts(num_layers=8))
    assert "zero_bubble_reshard" in [violation.rule for violation in found]
