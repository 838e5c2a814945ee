"""Experts dealt out to ranks: equal to one device in loss, every gradient and the weights after two steps."""

import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from trireme.interpret import CollectiveCount, Line, interpreting, plan_tensor_parallel, shard_parameters
from trireme.parallel import ExpertRanks, deal_experts
from trireme.plan import expert_copies, expert_groups, groups_of, parse_layout
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import expert_models

_ERROR = 1e-9
"""fp64, relative to the largest gradient: honest differences come from the order of sums."""

_SINGLE_INSIDE = {"deepseek_v3": 1e-5, "deepseek_v2": 1e-5, "ernie_moe": 1e-5}
"""Their routers multiply in fp32 whatever the parameters are, so sums in another order show at that size."""

_SEQS, _TOKENS = 4, 6


def _line(groups, count=None):
    group, _ = dist.new_subgroups_by_enumeration([list(ranks) for ranks in groups])
    return Line(rank=dist.get_rank(group), degree=len(groups[0]), group=group, count=count or CollectiveCount())


def _batch():
    generator = torch.Generator().manual_seed(3)
    return torch.randint(expert_models.VOCAB, (_SEQS, _TOKENS), generator=generator)


def _logits(outputs):
    return outputs if isinstance(outputs, torch.Tensor) else outputs.logits


def _loss(model, ids, count):
    inputs = {} if isinstance(model, expert_models.Model) else {"use_cache": False}
    logits = _logits(model(input_ids=ids, **inputs))
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum") / count


class World:
    """The groups of a layout, and what a rank does with its gradients."""

    def __init__(self, text):
        layout = parse_layout(text, ranks=dist.get_world_size()).layout
        self.count = CollectiveCount()
        self.tp = _line(groups_of(layout, "tp"), self.count)
        self.ep = _line(expert_groups(layout), self.count)
        self.dense = _line(groups_of(layout, ("dp_replicate", "dp_shard", "cp")))
        self.copies = _line(expert_copies(layout))
        self.ranks = ExpertRanks(ep=self.ep, tp=self.tp)

    def rows(self, ids):
        return ids.chunk(self.dense.degree)[self.dense.rank]

    def sum_gradients(self, model, dealt):
        for name, parameter in model.named_parameters():
            line = self.copies if name in dealt.parameters else self.dense
            missing = parameter.grad is None
            known = torch.tensor(0.0 if missing else 1.0)
            dist.all_reduce(known, group=line.group)
            if known == 0:
                continue
            grad = torch.zeros_like(parameter) if missing else parameter.grad
            dist.all_reduce(grad, group=line.group)
            parameter.grad = grad


def _built(name, experts, *, single):
    model = expert_models.build(name, experts).eval()
    return model.float() if single else model


def _reference(name, experts, *, single, steps=2):
    model = _built(name, experts, single=single)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = _batch()
    losses, grads = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        loss = _loss(model, ids, ids[:, 1:].numel())
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            grads = {key: each.grad for key, each in model.named_parameters()}
            grads = {key: None if each is None else each.clone() for key, each in grads.items()}
        optimizer.step()
    return losses, grads, dict(model.named_parameters())


def _own(dealt, plan, world, name, whole):
    """The part of a whole parameter or gradient that this rank holds."""
    if whole is None:
        return None
    part = dealt.rows.get(name)
    whole = whole if part is None else whole[part.start : part.start + part.length]
    return whole if plan is None else plan.parameters[name].take(whole, rank=world.tp.rank)


def _close(found, expected, error, what, scale=1.0):
    worst = (found - expected).abs().max().item() if found.numel() else 0.0
    assert worst <= error * scale, f"{what}: {worst}"


def _run(name, text, experts="eager", *, single=False, tensor_parallel=False):
    warnings.simplefilter("ignore")
    error = 1e-5 if single else _SINGLE_INSIDE.get(name, _ERROR)
    losses, grads, weights = _reference(name, experts, single=single)
    world = World(text)
    model = _built(name, experts, single=single)
    dealt = deal_experts(model, world.ranks)
    assert dealt.found.sets
    assert not dealt.found.whole
    _check_elements(model, dealt, weights, world.ep)
    plan = _cut_by_tensor_parallel(model, world) if tensor_parallel else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = world.rows(_batch())
    largest = max(grad.abs().max().item() for grad in grads.values() if grad is not None)
    for step in range(2):
        optimizer.zero_grad()
        with nullcontext() if plan is None else interpreting(model, plan, world.tp.group):
            loss = _loss(model, ids, _batch()[:, 1:].numel())
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total, group=world.dense.group)
        assert total.item() == pytest.approx(losses[step], rel=error)
        world.sum_gradients(model, dealt)
        if step == 0:
            for key, parameter in model.named_parameters():
                expected = _own(dealt, plan, world, key, grads[key])
                assert (parameter.grad is None) == (expected is None), key
                if expected is not None:
                    _close(parameter.grad, expected, error, key, scale=largest)
        optimizer.step()
    for key, parameter in model.named_parameters():
        # AdamW divides by the size of the gradient, so that fp32 noise in tiny gradients shows.
        limit = error if error == _ERROR else 1e2 * error
        _close(parameter.detach(), _own(dealt, plan, world, key, weights[key].detach()), limit, key)
    return model, dealt, world


def _check_elements(model, dealt, weights, ep):
    """Every rank holds the dense parameters and its share of the experts', to the element."""
    members = [path for each in dealt.found.sets for path in each.members]
    inside = {key for key in weights if any(key.startswith(f"{path}.") for path in members)}
    held = sum(each.numel() for key, each in model.named_parameters())
    dense = sum(each.numel() for key, each in weights.items() if key not in inside)
    total = torch.tensor(held - dense)
    dist.all_reduce(total, group=ep.group)
    assert total.item() == sum(weights[key].numel() for key in inside)
    assert dealt.parameters == {key for key in dict(model.named_parameters()) if key in inside}
    assert dealt.parameters | dealt.absent == inside


@pytest.mark.parametrize(
    "names",
    [
        ("mixtral", "qwen3_moe", "olmoe", "phimoe", "qwen2_moe", "gpt_oss"),
        ("deepseek_v2", "deepseek_v3", "ernie_moe"),
        ("looped", "looped_odd", "dense", "stacked"),
    ],
)
@on_ranks(2, timeout_s=240.0)
def test_experts_over_two_data_parallel_ranks_equal_one_device(names):
    for name in names:
        _run(name, "ep=2,dp=2")


@on_ranks(2, timeout_s=240.0)
def test_other_implementations_of_transformers_run_on_the_experts_of_a_rank():
    for name in ("gpt_oss", "qwen3_moe"):
        _run(name, "ep=2,dp=2", "batched_mm")
        _run(name, "ep=2,dp=2", "grouped_mm", single=True)


@on_ranks(4, timeout_s=240.0)
def test_four_ranks_hold_experts_in_any_way_and_equal_one_device():
    """PAR-16: whatever of tp and dp the experts are dealt out over, each token is sent once."""
    for text in ("ep=4,dp=4", "ep=2,dp=4", "ep=2,tp=2,dp=2", "ep=4,tp=2,dp=2", "ep=2,tp=4", "ep=4,tp=4"):
        for name in ("qwen3_moe", "looped"):
            _run(name, text)


def _cut_by_tensor_parallel(model, world):
    inputs = {"input_ids": _batch()} | ({} if isinstance(model, expert_models.Model) else {"use_cache": False})
    ids = _batch()
    plan = plan_tensor_parallel(
        model,
        inputs,
        degree=world.tp.degree,
        loss_fn=lambda outputs: F.cross_entropy(
            _logits(outputs)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum"
        ),
    )
    shard_parameters(model, plan, rank=world.tp.rank)
    return plan


@on_ranks(4, timeout_s=240.0)
def test_experts_beside_tensor_parallel_layers_equal_one_device():
    for text in ("ep=2,tp=2,dp=2", "ep=4,tp=2,dp=2"):
        for name in ("qwen3_moe", "looped"):
            _run(name, text, tensor_parallel=True)
    _run("gpt_oss", "ep=2,tp=2,dp=2", tensor_parallel=True)
