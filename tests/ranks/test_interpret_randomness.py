"""Dropout of unmodified modules on shards: every element drops where it would on one device."""

import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trireme.interpret import CollectiveCount, CountedRandomness, Line, bind, plan_tensor_parallel, shard_parameters
from trireme.parallel import ExpertRanks, deal_experts
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import expert_models
import interpret_models

_ERROR = 1e-10
"""fp64: honest differences come from the order of sums; another mask differs in the first digit."""


def _ids(vocab):
    return torch.randint(vocab, (2, 12), generator=torch.Generator().manual_seed(3))


def _loss(outputs, ids):
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def _with_dropout(name):
    """The model of this name with dropout wherever its code has some, or behind each of its MLPs."""
    model = interpret_models.build(name)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.2
        for attribute in ("attention_dropout", "attn_dropout", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.2)
    return model.train()


def _backward(model, ids, randomness, inputs):
    with randomness.at(step=2, first_row=0, rows=len(ids)):
        loss = _loss(model(input_ids=ids, **inputs), ids)
    loss.backward()
    return loss.item()


@on_ranks(2, timeout_s=240.0)
def test_dropout_on_shards_of_heads_and_widths_is_that_of_one_device():
    warnings.simplefilter("ignore")
    for name in ("gpt2", "llama", "opt", "bert", "t5"):
        reference, model = _with_dropout(name), _with_dropout(name)
        ids = _ids(interpret_models.VOCAB)
        inputs = {"decoder_input_ids": ids} if name == "t5" else {}
        expected = _backward(
            reference, ids, CountedRandomness(reference, seed=5, ranks={}, notice=warnings.warn), inputs
        )
        plan = plan_tensor_parallel(
            model.eval(), {"input_ids": ids, **inputs}, degree=2, loss_fn=lambda outputs, ids=ids: _loss(outputs, ids)
        )
        model.train()
        shard_parameters(model, plan, rank=dist.get_rank())
        randomness = CountedRandomness(model, seed=5, ranks={"tp": dist.get_rank()}, notice=warnings.warn)
        with bind(model, plan).active(), randomness.at(step=2, first_row=0, rows=len(ids)):
            loss = _loss(model(input_ids=ids, **inputs), ids)
        loss.backward()
        assert loss.item() == pytest.approx(expected, rel=_ERROR), name
        grads = {key: each.grad for key, each in reference.named_parameters()}
        largest = max(grad.abs().max() for grad in grads.values() if grad is not None)
        for key, parameter in model.named_parameters():
            if parameter.grad is not None:
                whole = plan.parameters[key].take(grads[key], rank=dist.get_rank())
                assert (parameter.grad - whole).abs().max() <= _ERROR * largest, (name, key)
        other = CountedRandomness(reference, seed=6, ranks={}, notice=warnings.warn)
        assert abs(_backward(reference, ids, other, inputs) - expected) > 1e-4, f"{name} drops nothing"


class _Jittered(expert_models.LoopedMoe):
    """Its router is shaken while training, and what it returns is dropped."""

    def forward(self, x):
        x = x * torch.empty_like(x).uniform_(0.9, 1.1)
        return F.dropout(super().forward(x), 0.2, self.training)


@on_ranks(2)
def test_layers_walked_through_twice_for_their_experts_draw_once():
    torch.manual_seed(5)
    reference = expert_models.Model(_Jittered).double()
    model = expert_models.Model(_Jittered).double()
    model.load_state_dict(reference.state_dict())
    line = Line(rank=dist.get_rank(), degree=2, group=dist.group.WORLD, count=CollectiveCount())
    alone = Line(rank=0, degree=1, group=None, count=CollectiveCount())
    deal_experts(model, ExpertRanks(ep=line, tp=alone))
    ids = _ids(expert_models.VOCAB)
    with CountedRandomness(reference, seed=5, ranks={}, notice=warnings.warn).at(step=2, first_row=0, rows=2):
        expected = reference(ids)[dist.get_rank() :][:1]
    with CountedRandomness(model, seed=5, ranks={}, notice=warnings.warn).at(step=2, first_row=dist.get_rank(), rows=1):
        found = model(ids[dist.get_rank() :][:1])
    assert (found - expected).abs().max() < _ERROR


class _Dropping(expert_models.LoopedMoe):
    def __init__(self, num_experts=4):
        super().__init__(num_experts)
        for expert in self.experts:
            expert.up = nn.Sequential(expert.up, nn.Dropout(0.2))


@on_ranks(2)
def test_dropout_inside_experts_of_several_ranks_is_told_for_their_rows_have_no_place():
    model = expert_models.Model(_Dropping).double()
    line = Line(rank=dist.get_rank(), degree=2, group=dist.group.WORLD, count=CollectiveCount())
    deal_experts(model, ExpertRanks(ep=line, tp=Line(rank=0, degree=1, group=None, count=CollectiveCount())))
    told = []
    with CountedRandomness(model, seed=5, ranks={}, notice=told.append).at(step=2, first_row=0, rows=1):
        model(_ids(expert_models.VOCAB)[:1])
    assert any("layers.0.moe.experts" in sentence for sentence in told)
