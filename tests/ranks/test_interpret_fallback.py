"""What no rule keeps sharded is gathered and told, what can't be gathered is refused: never a wrong number."""

import copy
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from trireme.errors import LayoutError
from trireme.interpret import interpreting, plan_tensor_parallel, shard_parameters
from trireme.interpret.collective import Line
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import interpret_models

_ERROR = 1e-10
"""fp64, tiny sizes."""


class Pair(nn.Module):
    """Two matrices with something in between that the test puts there."""

    def __init__(self, between, width=12, inner=24):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, inner), nn.Linear(inner, width)
        self.double()
        self.between = between

    def forward(self, x):
        return self.down(self.between(self.up(self.norm(x))))


class Gated(Pair):
    """One column more, too few for all ranks, that scales the result."""

    def __init__(self, between):
        super().__init__(between)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            self.up = nn.Linear(12, 25).double()

    def forward(self, x):
        wide, gate = self.between(self.up(self.norm(x))).split([24, 1], dim=-1)
        return self.down(wide) * gate


class _Doubled(torch.autograd.Function):
    """Acts on each element alone."""

    @staticmethod
    def forward(ctx, x):
        return 2.0 * x

    @staticmethod
    def backward(ctx, grad):
        return 2.0 * grad


class _Centred(torch.autograd.Function):
    """Mixes what is sharded, with results of the same shape."""

    @staticmethod
    def forward(ctx, x):
        return x - x.mean(-1, keepdim=True)

    @staticmethod
    def backward(ctx, grad):
        return grad - grad.mean(-1, keepdim=True)


def _sorted(x):
    return torch.sort(x, dim=-1).values


def _doubled_then_sorted(x):
    return _sorted(2.0 * x)


def _overwritten(x):
    x = x * 1.0
    x[..., 3] = 0.0
    return x


def _regrouped(x):
    return x.reshape(16, 3, 8).tanh().reshape(2, 8, 24)


def _recomputed(x):
    return checkpoint(lambda y: F.gelu(y) * y, x, use_reentrant=False)


def _dropped(x):
    return F.dropout(x, 0.4, True)


def _input():
    return torch.randn(2, 8, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def _run(between, *, planned=None, seed=7, kind=Pair):
    """Loss and gradients on shards and on one device; the plan may come from a tamer twin."""
    x, told = _input(), []
    plan = plan_tensor_parallel(kind(planned or between), {"x": x}, degree=dist.get_world_size())
    whole, module = kind(between), kind(between)
    shard_parameters(module, plan, rank=dist.get_rank())
    torch.manual_seed(seed)
    expected = whole(x).square().sum()
    torch.manual_seed(seed)
    with interpreting(module, plan, notice=told.append):
        found = module(x).square().sum()
    expected.backward()
    found.backward()
    errors = [abs(found.item() - expected.item())]
    for (name, a), b in zip(module.named_parameters(), whole.parameters(), strict=True):
        share = plan.parameters[name].take(b.grad, rank=dist.get_rank())
        errors.append((a.grad - share).abs().max().item())
    return max(errors), plan, told


@on_ranks(2)
@pytest.mark.parametrize("between", [torch.tanh, _Doubled.apply, _recomputed, _dropped])
def test_what_can_stay_sharded_stays_sharded_and_equal(between):
    error, plan, told = _run(between)
    assert error < _ERROR
    assert plan.parameters["up.weight"].dim == 0
    assert not told


@on_ranks(2, 4)
@pytest.mark.parametrize("between", [_sorted, _Centred.apply, _regrouped])
def test_par_10_what_a_plan_did_not_foresee_is_gathered_and_told(between):
    error, _, told = _run(between, planned=torch.tanh)
    assert error < _ERROR
    assert len(told) == 1
    assert "up.weight" in told[0]


@on_ranks(2, 4)
@pytest.mark.parametrize("between", [_doubled_then_sorted, torch.tanh])
def test_a_segment_that_all_ranks_keep_is_gathered_once(between):
    error, plan, told = _run(between, planned=torch.tanh, kind=Gated)
    assert error < _ERROR
    assert plan.parameters["up.weight"].split.segments == (24, 1)
    assert plan.parameters["up.weight"].split.keeps_some
    assert len(told) == (0 if between is torch.tanh else 1)


@on_ranks(2)
@pytest.mark.parametrize("between", [_sorted, _Centred.apply])
def test_a_plan_leaves_whole_what_can_not_be_cut(between):
    error, plan, told = _run(between)
    assert error < _ERROR
    assert "up.weight" in plan.whole
    assert not told


@on_ranks(2)
def test_writing_into_a_shard_is_refused_by_name():
    with pytest.raises(LayoutError, match=r"__setitem__.*up\.weight"):
        _run(_overwritten, planned=torch.tanh)


@on_ranks(2)
def test_a_plan_for_another_number_of_ranks_is_refused():
    plan = plan_tensor_parallel(Pair(torch.tanh), {"x": _input()}, degree=3)
    with pytest.raises(LayoutError, match="3 ranks"), interpreting(Pair(torch.tanh), plan):
        pass


@on_ranks(2)
def test_length_and_batch_may_change_after_planning():
    model = interpret_models.build("decoder_2")
    ids = torch.arange(8).view(2, 4)
    plan = plan_tensor_parallel(
        model, {"input_ids_BT": ids}, degree=2, loss_fn=lambda y: F.cross_entropy(y.flatten(0, 1), ids.flatten())
    )
    whole = copy.deepcopy(model)
    shard_parameters(model, plan, rank=dist.get_rank())
    for seqs, length in ((1, 5), (3, 17)):
        ids = torch.arange(seqs * length).view(seqs, length)
        with interpreting(model, plan):
            found = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
        assert abs(found.item() - F.cross_entropy(whole(ids).flatten(0, 1), ids.flatten()).item()) < _ERROR


@on_ranks(2)
@pytest.mark.parametrize("lost", ["forward", "backward"])
def test_a_lost_all_reduce_is_seen_by_this_comparison(lost):
    reduced = Line.all_reduce

    def forgetful(line, tensor, *, where, **options):
        return tensor if where == lost else reduced(line, tensor, where=where, **options)

    Line.all_reduce = forgetful
    error, _, _ = _run(torch.tanh)
    assert error > 1e-3
