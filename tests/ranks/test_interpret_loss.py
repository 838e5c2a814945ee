"""Losses on a cut vocabulary equal those on whole logits, and nothing gathers the logits."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trireme.interpret import CollectiveCount, bind, plan_tensor_parallel, shard_parameters
from trireme.models.cross_entropy import token_cross_entropy
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))

_ERROR = 1e-10
"""fp64, relative to the largest gradient: sums in another order."""

_VOCAB = 97
_LABELS = torch.randint(_VOCAB, (2, 12), generator=torch.Generator().manual_seed(3)).index_fill(
    1, torch.tensor([2]), -100
)
_WEIGHT = torch.linspace(0.5, 1.5, _VOCAB, dtype=torch.float64)
_SOFT = torch.randn(24, _VOCAB, generator=torch.Generator().manual_seed(4), dtype=torch.float64).softmax(-1)


class Head(nn.Module):
    """A residual stream and its head; the vocabulary doesn't divide."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.embed, self.head = nn.Embedding(_VOCAB, 32).double(), nn.Linear(32, _VOCAB).double()

    def forward(self, ids):
        return self.head(self.embed(ids))


def _entropy(**options):
    def loss(y):
        found = F.cross_entropy(y.flatten(0, 1), _LABELS.flatten(), **options)
        return found if found.ndim == 0 else found.square().sum()

    return loss


def _picked(y):
    return y.log_softmax(-1).gather(2, _LABELS.clamp_min(0).unsqueeze(2)).squeeze(2)


_LOSSES = {
    "mean": _entropy(),
    "sum": _entropy(reduction="sum"),
    "each": _entropy(reduction="none"),
    "smoothed": _entropy(label_smoothing=0.1),
    "weighted": _entropy(weight=_WEIGHT),
    "weighted_smoothed": _entropy(weight=_WEIGHT, label_smoothing=0.2),
    "by_position": lambda y: F.cross_entropy(y.transpose(1, 2), _LABELS),
    "soft": lambda y: F.cross_entropy(y.flatten(0, 1), _SOFT, label_smoothing=0.1),
    "z": lambda y: _entropy()(y) + 0.01 * torch.logsumexp(y, -1).square().mean(),
    "log_softmax_nll": lambda y: F.nll_loss(F.log_softmax(y.flatten(0, 1), -1), _LABELS.flatten(), weight=_WEIGHT),
    "softmax_gather": lambda y: -y.softmax(-1).gather(2, _LABELS.clamp_min(0)[..., None]).log().sum(),
    "one_hot": lambda y: -(y.log_softmax(-1) * F.one_hot(_LABELS.clamp_min(0), _VOCAB)).sum(),
    "distilled": lambda y: F.kl_div(y.flatten(0, 1).log_softmax(-1), _SOFT, reduction="batchmean"),
    "preferred": lambda y: -F.logsigmoid(_picked(y).sum(-1).diff()).sum(),
    "focal": lambda y: (1 - (-_entropy()(y)).exp()) ** 2 * _entropy()(y),
    "ours": lambda y: token_cross_entropy(y, {"labels": _LABELS})[0],
    "extremes": lambda y: y.max(-1).values.sum() + y.amax(-1).mean() - y.min(dim=-1)[0].mean() + y.max(),
}


def _check(name, *, gathers=0):
    loss_fn, ids = _LOSSES[name], _LABELS.clamp_min(0)
    whole, module = Head(), Head()
    plan = plan_tensor_parallel(module, {"ids": ids}, degree=dist.get_world_size(), loss_fn=loss_fn)
    assert plan.parameters["head.weight"].dim == 0, name
    shard_parameters(module, plan, rank=dist.get_rank())
    told, count = [], CollectiveCount()
    expected = loss_fn(whole(ids))
    with bind(module, plan, count=count, notice=told.append).active():
        found = loss_fn(module(ids))
    expected.backward()
    found.backward()
    assert abs(found.item() - expected.item()) <= _ERROR * max(1.0, abs(expected.item())), name
    for (key, a), b in zip(module.named_parameters(), whole.parameters(), strict=True):
        share = plan.parameters[key].take(b.grad, rank=dist.get_rank())
        assert (a.grad - share).abs().max() <= _ERROR * (1 + b.grad.abs().max()), (name, key)
    assert not told, (name, told)
    assert count.calls["all_gather forward"] == gathers, name


@on_ranks(2, 4)
def test_every_loss_on_a_cut_vocabulary_equals_one_device_without_gathering():
    for name in _LOSSES:
        _check(name)


@on_ranks(2)
def test_ranking_and_sampling_over_a_cut_vocabulary_choose_what_one_device_chooses():
    module, ids = Head(), _LABELS.clamp_min(0)
    whole = module(ids)
    plan = plan_tensor_parallel(module, {"ids": ids}, degree=2, loss_fn=_entropy())
    shard_parameters(module, plan, rank=dist.get_rank())
    count = CollectiveCount()
    with torch.no_grad(), bind(module, plan, count=count, notice=lambda _: None).active():
        logits = module(ids)
        assert torch.equal(logits.argmax(-1), whole.argmax(-1))
        assert torch.equal(logits.topk(60, -1).indices, whole.topk(60, -1).indices)
        before = count.calls["all_gather forward"]
        last = logits[0, -1].double().cpu()
        ordered, places = last.sort(descending=True, stable=True)
        ordered.softmax(-1).cumsum(-1)
        assert count.calls["all_gather forward"] == before + 1
        assert torch.equal(places, whole[0, -1].sort(descending=True, stable=True).indices)


@on_ranks(2)
def test_a_label_outside_the_vocabulary_is_refused_on_shards_too():
    from trireme.errors import ModelError

    module, ids = Head(), _LABELS.clamp_min(0)
    plan = plan_tensor_parallel(module, {"ids": ids}, degree=2, loss_fn=_LOSSES["ours"])
    shard_parameters(module, plan, rank=dist.get_rank())
    with bind(module, plan).active(), pytest.raises(ModelError):
        token_cross_entropy(module(ids), {"labels": _LABELS.clamp_min(0) + _VOCAB})
