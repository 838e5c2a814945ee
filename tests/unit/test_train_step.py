"""One step: exact gradients, whatever the micro-batches; nothing bad gets into the weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.unit.train_pieces import CPU, SEQ_LEN, VOCAB, TinyLM, call, loss_fn, make_batch, make_stepper, section
from trireme.errors import DeviceError, TrainError
from trireme.train import OneDevice, Passes, Stepper, build_optimizer

SAME_LOSS = 1e-6
"""Sums in another order: a few roundings of fp32."""
SAME_WEIGHTS = 1e-5
"""What the case asks of every parameter, relative to it."""
ANSWERS = (1, 12, 3, 7, 2, 11, 5, 9)
HALF_FORMAT = {"fp32": 1e-6, "bf16": 2e-2, "fp16": 2e-3}
"""Rounding of the format, relative to the largest gradient."""


def _one_step(microbatch_seqs: int | None, *, exact: bool):
    """AdamW in fp64, or plain descent in fp32: AdamW's first update is the gradient's sign, and where a
    gradient is nearly zero fp32 can't tell which."""
    module = TinyLM().double() if exact else TinyLM()
    optimizer = build_optimizer(module, section()) if exact else torch.optim.SGD(module.parameters(), lr=0.1)
    stepper = make_stepper(module, optimizer=optimizer, microbatch_seqs=microbatch_seqs)
    return stepper(make_batch(0, answers=ANSWERS)), module


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("microbatch_seqs", [4, 2, 1, 3])
def test_los_01_micro_batches_change_neither_loss_nor_weights(microbatch_seqs, exact):
    """LOS-01, with answers of 1 to 12 tokens; a micro-batch of 3 leaves a short last one."""
    whole, whole_module = _one_step(None, exact=exact)
    parts, parts_module = _one_step(microbatch_seqs, exact=exact)
    assert parts.loss == pytest.approx(whole.loss, rel=SAME_LOSS)
    assert parts.grad_norm == pytest.approx(whole.grad_norm, rel=SAME_WEIGHTS)
    assert parts.target_tokens == whole.target_tokens == sum(ANSWERS)
    for (name, one), other in zip(whole_module.named_parameters(), parts_module.parameters(), strict=True):
        nothing = 1e-7  # a bias that starts at zero has no relative size
        assert torch.allclose(one, other, rtol=SAME_WEIGHTS, atol=nothing), name


def test_los_01_a_mean_of_means_would_differ():
    """The control: the same comparison with the wrong denominator fails, so the test above can."""
    whole, _ = _one_step(None, exact=True)
    module, batch = TinyLM(), make_batch(0, answers=ANSWERS)
    means = []
    for row in range(8):
        ids, labels = (
            torch.from_numpy(batch.input_ids[row : row + 1]).long(),
            torch.from_numpy(batch.labels[row]).long(),
        )
        means.append(F.cross_entropy(module(ids)[0], labels, ignore_index=-100).item())
    assert abs(np.mean(means) - whole.loss) > 1000 * SAME_LOSS


@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp16"])
def test_the_gradient_is_that_of_the_undivided_batch_in_every_format(policy):
    expected = TinyLM()
    batch = make_batch(0, answers=ANSWERS)
    loss_sum, count = loss_fn(
        expected(torch.from_numpy(batch.input_ids).long()), {"labels": torch.from_numpy(batch.labels).long()}
    )
    (loss_sum / count).backward()
    seen: dict[str, torch.Tensor] = {}
    module = TinyLM()

    class Looking(OneDevice):
        def run(self, module: nn.Module, passes: Passes) -> None:
            super().run(module, passes)
            seen.update({name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None})

    stepper = make_stepper(module, precision=policy, microbatch_seqs=2, engine=Looking())
    scale = stepper.scaler.scale if stepper.scaler else 1.0
    stepper(batch)
    for name, parameter in expected.named_parameters():
        difference = (seen[name] / scale - parameter.grad).abs().max()
        assert difference <= HALF_FORMAT[policy] * parameter.grad.abs().max(), name


def test_counts_are_reduced_before_the_first_backward():
    moments: list[str] = []

    class Order(OneDevice):
        def sum_counts(self, counts):
            moments.append("counts")
            return super().sum_counts(counts)

        def run(self, module, passes):
            super().run(module, passes)
            moments.append("gradients")

    module = TinyLM()
    module.embed.weight.register_hook(lambda grad: moments.append("backward"))
    make_stepper(module, microbatch_seqs=4, engine=Order())(make_batch(0))
    assert moments == ["counts", "backward", "backward", "gradients"]


def test_two_ranks_through_the_seam_equal_one():
    """Two halves of the batch, each with the global count, sum to the whole batch's gradient."""

    class Half(OneDevice):
        kept: dict[str, torch.Tensor]

        def sum_counts(self, counts):
            return [sum(ANSWERS), *counts[1:]]

        def run(self, module, passes):
            super().run(module, passes)
            self.kept.update({name: parameter.grad.clone() for name, parameter in module.named_parameters()})

    batch = make_batch(0, answers=ANSWERS)
    grads = []
    for rows in (slice(0, 8), slice(0, 4), slice(4, 8)):
        module = TinyLM()
        part = {"input_ids": batch.input_ids[rows], "labels": batch.labels[rows]}
        kept: dict[str, torch.Tensor] = {}
        engine = Half()
        work_stepper = make_stepper(module, engine=engine, clip_grad_norm=None)
        engine.kept = kept
        work_stepper.step(part)
        grads.append(kept)
    whole, left, right = grads
    for name, grad in whole.items():
        assert torch.allclose(left[name] + right[name], grad, atol=1e-6), name


def test_clipping_is_by_the_global_norm_and_the_norm_reported_is_that_before():
    module = nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    before = module.weight.detach().clone()
    stepper = Stepper(
        module,
        optimizer,
        loss_fn=lambda outputs, batch: (100 * outputs.sum(), len(outputs)),
        count_fn=lambda batch: len(batch["x"]),
        call=lambda m, batch: m(batch["x"]),
        clip_grad_norm=0.5,
    )
    result = stepper({"x": torch.ones(2, 4)})
    assert result.grad_norm == pytest.approx(100 * math.sqrt(12))
    assert float((before - module.weight.detach()).norm()) == pytest.approx(0.5, rel=1e-5)


def test_amp_03_fp16_clips_and_unscales_only_at_the_update():
    """AMP-03: accumulation of 4 with scaler and clipping: 2 updates, 2 norms, equal to one batch of 4 parts."""
    keys = {"precision": "fp16", "clip_grad_norm": 0.5}
    parts = make_stepper(TinyLM(), microbatch_seqs=2, **keys)
    whole = make_stepper(TinyLM(), microbatch_seqs=None, **keys)
    results = [(parts(make_batch(step)), whole(make_batch(step))) for step in range(2)]
    for part, one in results:
        assert part.outcome == one.outcome == "updated"
        assert part.grad_norm == pytest.approx(one.grad_norm, rel=2e-3)
    for one, other in zip(parts.module.parameters(), whole.module.parameters(), strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def test_an_fp16_overflow_skips_halves_the_scale_and_is_counted():
    from trireme.train import Precision

    precision = Precision(policy="fp16", device=CPU, init_loss_scale=2.0**40)
    stepper = make_stepper(precision=precision)
    before = [p.detach().clone() for p in stepper.module.parameters()]
    result = stepper(make_batch(0))
    assert result.outcome == "overflow"
    assert math.isfinite(result.loss)
    assert stepper.scaler is not None
    assert stepper.scaler.scale == 2.0**39
    assert stepper.counters.num_overflows == 1
    assert stepper.counters.num_nonfinite == 0
    assert all(torch.equal(a, b) for a, b in zip(before, stepper.module.parameters(), strict=True))
    assert not stepper.optimizer.state
    results = [stepper(make_batch(step)) for step in range(1, 40)]
    assert results[-1].outcome == "updated"


def test_los_04_a_batch_without_targets_changes_nothing_and_is_counted():
    stepper = make_stepper()
    stepper(make_batch(0))
    before = [p.detach().clone() for p in stepper.module.parameters()]
    result = stepper(make_batch(1, answers=(0,) * 8))
    assert result.outcome == "empty"
    assert result.target_tokens == 0
    assert stepper.counters.num_empty == 1
    assert result.sample_ids == tuple(range(8, 16))
    assert all(torch.equal(a, b) for a, b in zip(before, stepper.module.parameters(), strict=True))


@pytest.mark.parametrize("reduction", [None, "mean"])
def test_los_04_a_micro_batch_without_targets_contributes_nothing(reduction):
    """LOS-04 for a sum and for a mean, whose 0/0 is NaN on the empty part."""
    answers = (0, 0, 0, 0, *ANSWERS[4:])

    def mean_loss(outputs, batch):
        return F.cross_entropy(outputs.reshape(-1, VOCAB), batch["labels"].reshape(-1), ignore_index=-100)

    keys = {"loss_fn": mean_loss, "loss_reduction": "mean"} if reduction else {}
    module = TinyLM()
    result = make_stepper(module, microbatch_seqs=4, **keys)(make_batch(0, answers=answers))
    reference = make_stepper(TinyLM())(make_batch(0, answers=answers))
    assert result.loss == pytest.approx(reference.loss, rel=SAME_LOSS)
    assert all(bool(torch.isfinite(p).all()) for p in module.parameters())


def test_los_04_a_rank_without_targets_still_runs_and_weighs_nothing():
    class Other(OneDevice):
        lockstep = True

        def sum_counts(self, counts):
            return [counts[0] + 10, *counts[1:]]

    module = TinyLM()
    grads: list[torch.Tensor] = []
    stepper = make_stepper(module, engine=Other())
    module.embed.weight.register_hook(lambda grad: grads.append(grad))
    result = stepper.step(make_batch(0, answers=(0,) * 8))
    assert len(grads) == 1
    assert float(grads[0].abs().max()) == 0.0
    assert result.outcome == "updated"


def test_dat_12_nothing_to_learn_at_step_1_stops():
    with pytest.raises(TrainError, match="-100"):
        make_stepper()(make_batch(0, answers=(0,) * 8))


def test_dat_12_a_loss_of_exactly_zero_at_step_1_stops():
    def zero(outputs, batch):
        return outputs.sum() * 0.0, (batch["labels"] != -100).sum()

    with pytest.raises(TrainError, match="exactly 0"):
        make_stepper(loss_fn=zero)(make_batch(0))


class Poison:
    """A loss that is NaN from some call on."""

    def __init__(self, first: int, last: int = 10**9) -> None:
        self.calls = 0
        self.bad = range(first, last)

    def __call__(self, outputs, batch):
        loss_sum, count = loss_fn(outputs, batch)
        self.calls += 1
        return (loss_sum * float("nan") if self.calls in self.bad else loss_sum), count


@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_mon_09_a_nan_loss_is_skipped_counted_and_stops_after_three_in_a_row(policy):
    stepper = make_stepper(loss_fn=Poison(3), precision=policy, max_nonfinite=3)
    stepper(make_batch(0))
    stepper(make_batch(1))
    before = [p.detach().clone() for p in stepper.module.parameters()]
    counted = []
    for step in (2, 3):
        result = stepper(make_batch(step))
        counted.append(stepper.counters.nonfinite_in_row)
        assert result.outcome == "nonfinite"
        assert math.isnan(result.loss)
    with pytest.raises(TrainError, match="3 steps in a row"):
        stepper(make_batch(4))
    assert counted == [1, 2]
    assert stepper.counters.num_nonfinite == 3
    assert all(torch.equal(a, b) for a, b in zip(before, stepper.module.parameters(), strict=True))


def test_mon_09_a_good_step_in_between_starts_the_count_anew():
    stepper = make_stepper(loss_fn=Poison(2, 4), max_nonfinite=3)
    outcomes = [stepper(make_batch(step)).outcome for step in range(5)]
    assert outcomes == ["updated", "nonfinite", "nonfinite", "updated", "updated"]
    assert stepper.counters.nonfinite_in_row == 0
    assert stepper.counters.num_nonfinite == 2


def test_mon_09_a_bad_gradient_behind_a_good_loss_is_caught():
    module = TinyLM()
    module.embed.weight.register_hook(lambda grad: grad * float("inf"))
    result = make_stepper(module)(make_batch(0))
    assert result.outcome == "nonfinite"
    assert math.isfinite(result.loss)
    assert not math.isfinite(result.grad_norm)


def test_the_policy_stop_stops_at_once_with_the_sample_ids():
    stepper = make_stepper(loss_fn=Poison(2), on_nonfinite="stop")
    stepper(make_batch(0))
    with pytest.raises(TrainError, match="8, 9, 10"):
        stepper(make_batch(1))


def test_running_statistics_of_a_bad_batch_do_not_outlive_it():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    stepper = Stepper(
        module,
        torch.optim.SGD(module.parameters(), lr=0.1),
        loss_fn=lambda outputs, batch: ((outputs**2).sum(), len(outputs)),
        count_fn=lambda batch: len(batch["x"]),
        call=lambda m, batch: m(batch["x"]),
    )
    stepper({"x": torch.randn(8, 4)})
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert stepper({"x": torch.full((8, 4), float("nan"))}).outcome == "nonfinite"
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def _router_gradient(microbatch_seqs: int | None) -> float:
    """The gradient of an auxiliary term alone: the main loss weighs nothing."""
    module = TinyLM()
    norms: list[float] = []

    class Outputs(NamedTuple):
        logits: torch.Tensor
        aux_loss: torch.Tensor

    def call_moe(m, batch):
        logits = call(m, batch)
        return Outputs(logits, F.softmax(logits, -1).mean((0, 1)).square().sum())

    def no_loss(outputs, batch):
        loss_sum, count = loss_fn(outputs.logits, batch)
        return loss_sum * 1e-12, count

    stepper = make_stepper(
        module,
        call=call_moe,
        loss_fn=no_loss,
        auxiliary=lambda outputs, batch: 0.1 * outputs.aux_loss,
        microbatch_seqs=microbatch_seqs,
    )
    norms.append(stepper.step(make_batch(0)).grad_norm)
    return norms[0]


def test_los_03_an_auxiliary_gradient_does_not_grow_with_micro_batches():
    ratio = _router_gradient(2) / _router_gradient(None)
    assert 0.7 < ratio < 1.3


def test_los_03_an_auxiliary_loss_that_nothing_takes_up_is_refused():
    class Outputs(NamedTuple):
        logits: torch.Tensor
        aux_loss: torch.Tensor

    stepper = make_stepper(
        call=lambda m, batch: Outputs(call(m, batch), torch.ones(())),
        loss_fn=lambda outputs, batch: loss_fn(outputs.logits, batch),
    )
    with pytest.raises(TrainError, match="aux_loss"):
        stepper(make_batch(0))


def test_a_bare_scalar_is_refused_by_name():
    stepper = make_stepper(loss_fn=lambda outputs, batch: outputs.sum())
    with pytest.raises(TrainError, match="loss_reduction"):
        stepper(make_batch(0))


def test_a_count_that_contradicts_the_batch_is_refused():
    stepper = make_stepper(loss_fn=lambda outputs, batch: (outputs.sum(), outputs.shape[0]))
    with pytest.raises(TrainError, match="count_fn"):
        stepper(make_batch(0))


def test_a_batch_that_nothing_can_count_is_refused():
    stepper = make_stepper()
    with pytest.raises(TrainError, match="count_fn"):
        stepper({"input_ids": torch.zeros(2, 3, dtype=torch.long)})


def test_a_whole_batch_loss_refuses_micro_batches():
    stepper = make_stepper(
        loss_fn=lambda outputs, batch: outputs.square().mean(), loss_reduction="batch", microbatch_seqs=4
    )
    with pytest.raises(TrainError, match="microbatch_seqs=4"):
        stepper(make_batch(0))
    stepper.microbatch_seqs = None
    assert stepper(make_batch(0)).outcome == "updated"


def test_tensors_that_disagree_on_samples_are_refused():
    stepper = make_stepper()
    batch = {"input_ids": torch.zeros(2, 3, dtype=torch.long), "labels": torch.zeros(3, 3, dtype=torch.long)}
    with pytest.raises(TrainError, match="input_ids: 2, labels: 3"):
        stepper(batch)


def test_out_of_memory_names_a_micro_batch_that_may_fit():
    def full(outputs, batch):
        raise torch.OutOfMemoryError("no")

    with pytest.raises(DeviceError, match=r"train\.microbatch_seqs=2"):
        make_stepper(loss_fn=full, microbatch_seqs=4)(make_batch(0))


def test_tokens_are_counted_three_ways():
    batch = make_batch(0, answers=ANSWERS)
    document_ids = batch.document_ids.copy()
    document_ids[0, 8:] = -1
    result = make_stepper()(replace(batch, document_ids=document_ids))
    assert result.step_tokens == 8 * SEQ_LEN
    assert result.real_tokens == 8 * SEQ_LEN - 4
    assert result.target_tokens == sum(ANSWERS)


def test_a_given_rate_reaches_every_group():
    module = TinyLM()
    stepper = make_stepper(module, optimizer=build_optimizer(module, section()))
    result = stepper(make_batch(0), lr=0.125)
    assert result.lr == 0.125
    assert [group["lr"] for group in stepper.optimizer.param_groups] == [0.125, 0.125]
