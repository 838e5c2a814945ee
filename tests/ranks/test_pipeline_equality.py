"""Unmodified models in pipelines: losses and every gradient, by name, equal those of one device."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trireme.parallel import Executor, Lane, StageSet, TiedGradients, capture, choose_cuts
from trireme.plan import build_schedule
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import pipeline_models as models

_ERROR = 1e-9
"""fp64: sums in another order."""


def _cut(name, schedule, vp):
    """A model of which this rank keeps its stages, and what runs them."""
    lane = Lane(forth=dist.group.WORLD, back=dist.group.WORLD, device=torch.device("cpu"))
    module = models.build(name)
    example = models.batch(name, rows=2)
    trace = capture(module, example, call=models.call)
    shape = build_schedule(schedule, pp=lane.degree, num_microbatches=1, vp=vp)
    stages = StageSet(
        module,
        trace,
        cuts=choose_cuts(trace, num_stages=shape.num_stages),
        stages=shape.stages_of(lane.rank),
        num_stages=shape.num_stages,
        call=models.call,
    )
    ties = TiedGradients(stages, lane=lane, schedule=shape)
    return module, Executor(stages, lane=lane, schedule=schedule, vp=vp), ties, shape


def _check(name, schedule, vp, steps):
    """Run steps of micro-batches of these sizes and lengths, and compare with one device."""
    module, executor, ties, shape = _cut(name, schedule, vp)
    reference = models.build(name)
    for number, (sizes, length) in enumerate(steps):
        given = models.cut(models.batch(name, rows=sum(sizes), length=length, seed=number), sizes)
        module.zero_grad()
        reference.zero_grad()
        losses = executor.run(given, loss_of=models.loss_of)
        ties.sum()
        expected = [models.loss_of(models.call(reference, each), each, place) for place, each in enumerate(given)]
        sum(expected).backward()
        _compare(module, reference)
        if dist.get_rank() == shape.rank_of(shape.num_stages - 1):
            torch.testing.assert_close(torch.stack(losses), torch.stack(expected).detach(), rtol=_ERROR, atol=0)
        else:
            assert losses == []
    _check_complete(module, reference)


def _compare(module, reference):
    wanted = dict(reference.named_parameters(remove_duplicate=False))
    for name, parameter in module.named_parameters(remove_duplicate=False):
        expected = wanted[name].grad
        assert (parameter.grad is None) == (expected is None), name
        if expected is not None:
            error = float((parameter.grad - expected).abs().max())
            assert error <= _ERROR * max(float(expected.abs().max()), 1e-6), (name, error)


def _check_complete(module, reference):
    """Every parameter is on some rank, under its own name, and no rank holds all."""
    names = [None] * dist.get_world_size()
    dist.all_gather_object(names, [name for name, _ in module.named_parameters(remove_duplicate=False)])
    whole = {name for name, _ in reference.named_parameters(remove_duplicate=False)}
    assert {name for held in names for name in held} == whole
    assert all(set(held) < whole for held in names)


UNEVEN = [((2, 1, 2, 1), 12), ((1, 1, 1, 2), 17), ((2, 2), 12)]
"""Micro-batches that differ, another length, then fewer of them."""


@pytest.mark.parametrize(
    ("name", "schedule", "vp"),
    [
        ("gpt", "1f1b", 1),
        ("gpt", "interleaved", 2),
        ("gpt", "zb", 1),
        ("gpt", "zbv", 2),
        ("gpt", "gpipe", 2),
        ("library", "1f1b", 1),
        ("llama", "zbv", 2),
        ("long_skips", "interleaved", 2),
        ("two_towers", "zb", 1),
        ("in_place", "interleaved", 2),
        ("side_loss", "1f1b", 1),
        ("shared_depth", "1f1b", 1),
        ("plain", "1f1b", 1),
        ("hourglass", "zbv", 2),
        ("hf_llama", "1f1b", 1),
        ("hf_qwen3", "interleaved", 2),
        ("hf_gpt2", "zbv", 2),
        ("hf_bert", "zb", 1),
        ("hf_mixtral", "1f1b", 1),
        ("hf_t5", "interleaved", 2),
        ("hf_vit", "1f1b", 1),
        ("hf_opt", "1f1b", 1),
    ],
)
@on_ranks(2)
def test_two_ranks_equal_one_device_pip_05_pip_12(name, schedule, vp):
    """Unequal micro-batches (PIP-05) and lengths that change from step to step (PIP-12)."""
    _check(name, schedule, vp, UNEVEN)


@pytest.mark.parametrize(
    ("name", "schedule", "vp"), [("gpt", "1f1b", 1), ("long_skips", "zb", 1), ("hf_t5", "1f1b", 1), ("hf_t5", "zbv", 2)]
)
@on_ranks(4)
def test_four_ranks_equal_one_device(name, schedule, vp):
    """Values that cross several borders are handed through."""
    _check(name, schedule, vp, [((1, 2, 1, 1, 1), 12), ((2, 1), 9)])
