"""Experts dealt out beside ZeRO: the rest cut over all data-parallel ranks, experts over those that hold the same."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from trireme.interpret import CollectiveCount, Line
from trireme.parallel import ExpertRanks, SyncTogether, deal_experts, replicate, shard
from trireme.plan import expert_copies, expert_groups, parse_layout
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import expert_models

_ERROR = 1e-11
"""fp64, tiny sizes: only the order of sums differs."""


def _group(groups):
    return dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups])[0]


def _ids():
    return torch.randint(expert_models.VOCAB, (8, 6), generator=torch.Generator().manual_seed(3))


def _loss(model, ids):
    return F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / 40


def _line(group):
    rank, degree = dist.get_rank(group), dist.get_world_size(group)
    return Line(rank=rank, degree=degree, group=group, count=CollectiveCount())


def _reference(name):
    model = expert_models.build(name)
    for micro in _ids().view(4, 2, 1, 6).transpose(0, 1):
        _loss(model, micro.flatten(0, 1)).backward()
    return dict(model.named_parameters())


@pytest.mark.parametrize("zero", [1, 2, 3])
@on_ranks(4)
def test_experts_stay_apart_from_zero_and_equal_one_device(zero):
    """Two ranks share out the experts, two pairs hold the same ones; two micro-batches."""
    layout = parse_layout(f"ep=2,dp=4,zero{zero}", ranks=4).layout
    groups = _group(expert_groups(layout)), _group(expert_copies(layout))
    for name in ("stacked", "looped"):
        expected, model = _reference(name), expert_models.build(name)
        alone = Line(rank=0, degree=1, group=None, count=CollectiveCount())
        dealt = deal_experts(model, ExpertRanks(ep=_line(groups[0]), tp=alone))
        experts = [(key, each) for key, each in model.named_parameters() if key in dealt.parameters]
        apart = [each for _, each in experts]
        rest = shard(model, list(model.layers), group=dist.group.WORLD, zero=zero, apart=apart)
        sync = SyncTogether(rest, replicate(model, experts, group=groups[1]))
        sync.start_step(2)
        for number, micro in enumerate(_ids().view(4, 2, 1, 6)[dist.get_rank()]):
            sync.before_backward(is_last=number == 1)
            _loss(model, micro).backward()
            sync.after_backward(is_last=number == 1)
        sync.finish()
        for key, parameter in model.named_parameters():
            whole, part = expected[key].grad, dealt.rows.get(key)
            whole = whole if part is None else whole[part.start : part.start + part.length]
            grad = parameter.grad.full_tensor() if key not in dealt.parameters else parameter.grad
            assert (grad - whole).abs().max() <= _ERROR, (name, key)


@on_ranks(4)
def test_experts_are_cut_over_the_ranks_that_hold_the_same_ones():
    layout = parse_layout("ep=2,dp=4,zero3", ranks=4).layout
    groups = _group(expert_groups(layout)), _group(expert_copies(layout))
    for name in ("stacked", "looped"):
        expected, model = _reference(name), expert_models.build(name)
        alone = Line(rank=0, degree=1, group=None, count=CollectiveCount())
        dealt = deal_experts(model, ExpertRanks(ep=_line(groups[0]), tp=alone))
        apart = [each for key, each in model.named_parameters() if key in dealt.parameters]
        held = sum(each.numel() for each in apart)
        # Experts first, each a root of its own over its copies; what is around them then leaves them alone.
        syncs = [shard(model.get_submodule(path), [], group=groups[1], zero=3) for unit in dealt.units for path in unit]
        inside = [each for key, each in model.named_parameters() if key in dealt.parameters]
        rest = shard(model, list(model.layers), group=dist.group.WORLD, zero=3, apart=inside)
        sync = SyncTogether(rest, *syncs)
        sync.start_step(2)
        for number, micro in enumerate(_ids().view(4, 2, 1, 6)[dist.get_rank()]):
            sync.before_backward(is_last=number == 1)
            _loss(model, micro).backward()
            sync.after_backward(is_last=number == 1)
        sync.finish()
        local = sum(each.to_local().numel() for key, each in model.named_parameters() if key in dealt.parameters)
        assert local == held // 2
        for key, parameter in model.named_parameters():
            whole, part = expected[key].grad, dealt.rows.get(key)
            whole = whole if part is None else whole[part.start : part.start + part.length]
            assert (parameter.grad.full_tensor() - whole).abs().max() <= _ERROR, (name, key)
