"""Experts dealt out over ranks that hold parts of the sequence: each sends its own tokens, equal to one device."""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from trireme.interpret import CollectiveCount, ContextBinding, Line, bind, plan_tensor_parallel, shard_parameters
from trireme.parallel import ExpertRanks, deal_experts
from trireme.plan import expert_copies, expert_groups, groups_of, parse_layout
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import expert_models

_ERROR = 1e-9
"""fp64: honest differences come from the order of sums."""


def _line(groups):
    group, _ = dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups])
    return Line(rank=dist.get_rank(group), degree=len(groups[0]), group=group, count=CollectiveCount())


def _batch():
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(expert_models.VOCAB, (2, 9), generator=generator)
    labels = torch.randint(expert_models.VOCAB, (2, 9), generator=generator)
    return {"input_ids": ids, "labels": labels}


def _loss(model, batch):
    options = {} if isinstance(model, expert_models.Model) else {"use_cache": False}
    outputs = model(input_ids=batch["input_ids"], **options)
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum") / 18


def _tensor_parallel(model, line):
    if line.degree == 1:
        return nullcontext, None
    plan = plan_tensor_parallel(
        model,
        {"input_ids": _batch()["input_ids"]} | ({} if isinstance(model, expert_models.Model) else {"use_cache": False}),
        degree=line.degree,
        loss_fn=lambda outputs: _loss(lambda **_: outputs, _batch()),
    )
    shard_parameters(model, plan, rank=line.rank)
    return bind(model, plan, line.group).active, plan


def _check(name, text):
    layout = parse_layout(text, ranks=dist.get_world_size()).layout
    tp, cp = _line(groups_of(layout, "tp")), _line(groups_of(layout, "cp"))
    ep, copies = _line(expert_groups(layout)), _line(expert_copies(layout))
    reference, model = (expert_models.build(name).eval() for _ in range(2))
    expected = _loss(reference, _batch())
    expected.backward()
    dealt = deal_experts(model, ExpertRanks(ep=ep, tp=tp))
    active, plan = _tensor_parallel(model, tp)
    context = ContextBinding(cp.group, notice=warnings.warn)
    batch = context.batch(_batch())
    with context.active(), active():
        loss = _loss(model, batch)
    context.part(loss).backward()
    assert context.whole(loss).sum().item() == pytest.approx(expected.item(), rel=_ERROR)
    grads = {key: each.grad for key, each in reference.named_parameters()}
    largest = max(grad.abs().max() for grad in grads.values() if grad is not None)
    for key, parameter in model.named_parameters():
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(grad, group=(copies if key in dealt.parameters else cp).group)
        whole, part = grads[key], dealt.rows.get(key)
        whole = torch.zeros_like(dict(reference.named_parameters())[key]) if whole is None else whole
        whole = whole if part is None else whole[part.start : part.start + part.length]
        whole = whole if plan is None else plan.parameters[key].take(whole, rank=tp.rank)
        assert (grad - whole).abs().max() <= _ERROR * largest, (name, text, key)
    return [str(notice) for notice in context.notices], dealt


@on_ranks(2, timeout_s=240.0)
def test_experts_over_parts_of_the_sequence_equal_one_device():
    warnings.simplefilter("ignore")
    for name in ("qwen3_moe", "gpt_oss", "stacked", "looped"):
        notices, dealt = _check(name, "ep=2,cp=2")
        if name in ("qwen3_moe", "gpt_oss"):
            # Tokens stay where they are but for their experts: nothing was gathered, each rank sent its own.
            assert not notices, notices
            sent = sum(int(each.load.sum()) for each in dealt.traffic.values())
            assert sent in (2 * 2 * 2 * 4, 2 * 2 * 2 * 5), sent


@on_ranks(4, timeout_s=240.0)
def test_experts_over_parts_of_sequence_and_layers_equal_one_device():
    warnings.simplefilter("ignore")
    _check("qwen3_moe", "ep=4,cp=2,tp=2")
    _check("looped", "ep=2,cp=2,tp=2")
