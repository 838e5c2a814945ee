"""The held-out loss: each sequence once, weighted by tokens, nothing left changed."""

from __future__ import annotations

import pytest
import torch

from tests.unit.train_pieces import CPU, TinyLM, call, loss_fn, make_batch
from trireme.errors import TrainError
from trireme.train import Objective, Precision, evaluate

OBJECTIVE = Objective(loss_fn=loss_fn, call=call)
FP32 = Precision(policy="fp32", device=CPU)
ANSWERS = (1, 12, 3, 7, 2, 11, 5, 9)
SAME = 1e-6


def _evaluate(module, batches, **keys):
    return evaluate(module, batches, objective=OBJECTIVE, precision=FP32, **keys)


@pytest.mark.parametrize("microbatch_seqs", [1, 3, None])
def test_the_loss_is_the_mean_over_tokens_for_any_micro_batch(microbatch_seqs):
    module = TinyLM(dropout=0.3)
    batch = make_batch(0, answers=ANSWERS)
    result = _evaluate(module, [batch], microbatch_seqs=microbatch_seqs)
    module.eval()
    tensors = {"input_ids": torch.from_numpy(batch.input_ids).long(), "labels": torch.from_numpy(batch.labels).long()}
    loss_sum, count = loss_fn(call(module, tensors), tensors)
    assert result.loss == pytest.approx(loss_sum.item() / count.item(), rel=SAME)
    assert (result.num_seqs, result.target_tokens) == (8, sum(ANSWERS))


def test_batches_of_unequal_length_are_weighted_by_tokens():
    module = TinyLM()
    one, two = make_batch(0, answers=(1,) * 8), make_batch(1)
    apart = [_evaluate(module, [batch]) for batch in (one, two)]
    together = _evaluate(module, [one, two])
    weighted = sum(r.loss * r.target_tokens for r in apart) / sum(r.target_tokens for r in apart)
    assert together.loss == pytest.approx(weighted, rel=SAME)


def test_modes_come_back_as_they_were_and_no_gradient_is_left():
    module = TinyLM(dropout=0.3).train()
    module.blocks[0].eval()
    _evaluate(module, [make_batch(0)])
    assert module.training
    assert not module.blocks[0].training
    assert module.blocks[1].training
    assert all(p.grad is None for p in module.parameters())
    assert torch.is_grad_enabled()


def test_modes_come_back_after_an_error_too():
    module = TinyLM().train()
    with pytest.raises(TrainError, match="no token"):
        _evaluate(module, [make_batch(0, answers=(0,) * 8)])
    assert module.training
