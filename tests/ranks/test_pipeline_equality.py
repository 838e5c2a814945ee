"""Unmodified models in pipelines: losses and every gradient, by name, equal those of one device."""

import datetime
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trireme.errors import TrainError
from trireme.parallel import Executor, Lane, StageSet, TiedGradients, capture, choose_cuts
from trireme.plan import build_schedule
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import pipeline_models as models

_ERROR = 1e-9
"""fp64: sums in another order."""


def _cut(name, schedule, vp, *, lane=None):
    """A model of which this rank keeps its stages, and what runs them."""
    lane = lane or Lane(forth=dist.group.WORLD, back=dist.group.WORLD, device=torch.device("cpu"))
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
        ties.start()
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
        ("hourglass", "zbv", 2),
        ("hf_qwen3", "interleaved", 2),
        ("hf_gpt2", "zbv", 2),
        ("hf_bert", "zb", 1),
        ("hf_mixtral", "1f1b", 1),
        ("hf_t5", "interleaved", 2),
        ("hf_vit", "1f1b", 1),
    ],
)
@on_ranks(2, timeout_s=180)
def test_two_ranks_equal_one_device_pip_05_pip_12(name, schedule, vp):
    """Unequal micro-batches (PIP-05) and lengths that change from step to step (PIP-12)."""
    _check(name, schedule, vp, UNEVEN)


@pytest.mark.parametrize(("name", "schedule", "vp"), [("gpt", "1f1b", 1), ("long_skips", "zb", 1), ("hf_t5", "zbv", 2)])
@on_ranks(4, timeout_s=180)
def test_four_ranks_equal_one_device(name, schedule, vp):
    """Values that cross several borders are handed through."""
    _check(name, schedule, vp, [((1, 2, 1, 1, 1), 12), ((2, 1), 9)])


@on_ranks(2, timeout_s=180)
def test_pip_01_gradients_of_several_steps_add_up_once():
    """Three schedules before one optimizer step, a tied weight among the parameters."""
    module, executor, ties, _ = _cut("gpt", "1f1b", 1)
    reference = models.build("gpt")
    for number in range(3):
        given = models.cut(models.batch("gpt", rows=4, seed=number), (1, 1, 1, 1))
        ties.start()
        executor.run(given, loss_of=models.loss_of)
        ties.sum()
        for each in given:
            models.loss_of(models.call(reference, each), each, 0).backward()
    _compare(module, reference)


@on_ranks(2, timeout_s=180)
def test_pip_10_without_learning_rate_nothing_changes():
    module, executor, ties, _ = _cut("gpt", "zbv", 2)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.0, weight_decay=0.0)
    before = {name: each.clone() for name, each in module.named_parameters()}
    for number in range(3):
        ties.start()
        executor.run(models.cut(models.batch("gpt", rows=4, seed=number), (1, 1, 1, 1)), loss_of=models.loss_of)
        ties.sum()
        optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(each, before[name]) for name, each in module.named_parameters())


@on_ranks(2, timeout_s=180)
def test_pip_08_a_loss_over_pairs_in_a_micro_batch_is_the_same():
    """Chosen and rejected rows stand beside each other in one micro-batch."""

    def pairs(outputs, given, index):
        chosen, rejected = outputs.log_softmax(-1)[..., 5].sum(-1).view(-1, 2).unbind(-1)
        return -torch.nn.functional.logsigmoid(chosen - rejected).sum()

    module, executor, ties, _ = _cut("gpt", "1f1b", 1)
    reference = models.build("gpt")
    given = models.cut(models.batch("gpt", rows=8), (4, 4))
    executor.run(given, loss_of=pairs)
    ties.sum()
    for each in given:
        pairs(models.call(reference, each), each, 0).backward()
    _compare(module, reference)


@on_ranks(2, timeout_s=180)
def test_evaluating_runs_forwards_alone():
    module, executor, _, shape = _cut("hf_t5", "interleaved", 2)
    given = models.cut(models.batch("hf_t5", rows=5), (2, 2, 1))
    losses = executor.run(given, loss_of=models.loss_of, only_forward=True)
    assert all(each.grad is None for each in module.parameters())
    if dist.get_rank() == shape.rank_of(shape.num_stages - 1):
        reference = models.build("hf_t5")
        expected = [models.loss_of(models.call(reference, each), each, 0).detach() for each in given]
        torch.testing.assert_close(losses, expected, rtol=_ERROR, atol=0)


@on_ranks(2, timeout_s=180)
def test_backwards_are_told_to_whoever_sums_gradients():
    class Log:
        def __init__(self):
            self.lines = []

        def before_backward(self, stage=0, *, is_last):
            self.lines.append(("before", stage, is_last))

        def after_backward(self, stage=0, *, is_last):
            self.lines.append(("after", stage, is_last))

    for schedule, halves in (("1f1b", 1), ("zb", 2)):
        _, executor, _, _ = _cut("library", schedule, 1)
        executor.sync = log = Log()
        executor.run(models.cut(models.batch("library", rows=3), (1, 1, 1)), loss_of=models.loss_of)
        assert log.lines.count(("after", dist.get_rank(), True)) == 1
        assert log.lines[-1] == ("after", dist.get_rank(), True)
        assert sum(kind == "before" for kind, _, _ in log.lines) == 3 * halves


def _broken_loss(outputs, given, index):
    if index == 1:
        raise ValueError("out of luck")
    return models.loss_of(outputs, given, index)


@on_ranks(2, timeout_s=180)
def test_a_rank_that_fails_in_the_middle_of_a_step_does_not_hang_the_other():
    quick = datetime.timedelta(seconds=4)
    lane = Lane(forth=dist.new_group(timeout=quick), back=dist.new_group(timeout=quick), device=torch.device("cpu"))
    _, executor, _, _ = _cut("gpt", "1f1b", 1, lane=lane)
    given = models.cut(models.batch("gpt", rows=4), (1, 1, 1, 1))
    if dist.get_rank() == 1:
        with pytest.raises(ValueError, match="out of luck"):
            executor.run(given, loss_of=_broken_loss)
    else:
        with pytest.raises(
            TrainError, match=r"B of micro-batch 1 from stage 1 \(pp rank 1\) to stage 0 .* did not get"
        ):
            executor.run(given, loss_of=_broken_loss)
