"""How tokens travel: ranks without tokens, recomputation, autocast, capacity, bytes, and what is refused."""

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
from trireme.interpret import CollectiveCount, Line
from trireme.parallel import (
    ExpertRanks,
    balance_loss,
    deal_experts,
    find_experts,
    update_selection_biases,
    z_loss,
)
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import expert_models

_ERROR = 1e-11
"""fp64, tiny sizes: only the order of sums differs."""


def _alone():
    return Line(rank=0, degree=1, group=None, count=CollectiveCount())


def _world(count=None):
    group = dist.group.WORLD
    line = Line(rank=dist.get_rank(), degree=dist.get_world_size(), group=group, count=count or CollectiveCount())
    return ExpertRanks(ep=line, tp=_alone())


def _ids(seqs=4, tokens=6):
    return torch.randint(expert_models.VOCAB, (seqs, tokens), generator=torch.Generator().manual_seed(3))


def _backward(model, ids, whole):
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    (loss / whole[:, 1:].numel()).backward()
    return loss


def _equal_to_one_device(model, dealt, reference):
    expected = dict(reference.named_parameters())
    for name, parameter in model.named_parameters():
        whole, part = expected[name].grad, dealt.rows.get(name)
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        if name not in dealt.parameters:
            dist.all_reduce(grad)
        whole = torch.zeros_like(expected[name]) if whole is None else whole
        whole = whole if part is None else whole[part.start : part.start + part.length]
        assert (grad - whole).abs().max() <= _ERROR, name


def _prefer_first(model):
    """Let every token choose experts 0 and 1, which belong to rank 0."""
    for layer in model.layers:
        with torch.no_grad():
            layer.moe.gate.weight.mul_(1e-3)
        layer.moe.gate.bias = nn.Parameter(torch.tensor([9.0, 8.0, 0.0, -1.0], dtype=torch.float64))
    return model


@pytest.mark.parametrize("name", ["looped", "stacked", "dense"])
@on_ranks(2)
def test_a_rank_whose_experts_nobody_chose_takes_part(name):
    reference = _prefer_first(expert_models.build(name))
    model = copy.deepcopy(reference)
    dealt = deal_experts(model, _world())
    _backward(reference, _ids(), _ids())
    _backward(model, _ids().chunk(2)[dist.get_rank()], _ids())
    _equal_to_one_device(model, dealt, reference)
    if name == "looped" and dist.get_rank() == 1:
        # As on one device, an expert that is never called has no gradient rather than one of zero.
        assert model.layers[0].moe.experts[3].up.weight.grad is None


@pytest.mark.parametrize("name", ["looped", "stacked"])
@on_ranks(2)
def test_a_rank_with_an_empty_micro_batch_takes_part(name):
    reference = expert_models.build(name)
    model = copy.deepcopy(reference)
    dealt = deal_experts(model, _world())
    _backward(reference, _ids(), _ids())
    _backward(model, _ids()[: 4 if dist.get_rank() == 0 else 0], _ids())
    _equal_to_one_device(model, dealt, reference)


class _Recomputed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return checkpoint(self.layer, x, use_reentrant=False)


@pytest.mark.parametrize("name", ["looped", "stacked"])
@on_ranks(2)
def test_recomputed_layers_send_again_and_count_once(name):
    reference = expert_models.build(name)
    model = copy.deepcopy(reference)
    dealt = deal_experts(model, _world())
    model.layers = nn.ModuleList([_Recomputed(layer) for layer in model.layers])
    _backward(reference, _ids(), _ids())
    _backward(model, _ids().chunk(2)[dist.get_rank()], _ids())
    model.layers = nn.ModuleList([each.layer for each in model.layers])
    _equal_to_one_device(model, dealt, reference)
    for traffic in dealt.traffic.values():
        assert int(traffic.load.sum()) == _ids().numel() // 2 * 2


@on_ranks(2)
def test_under_autocast_experts_compute_in_the_format_of_the_caller():
    reference = expert_models.build("looped").float()
    model = copy.deepcopy(reference)
    deal_experts(model, _world())
    kinds = []
    for member in model.layers[0].moe.experts:
        member.down.register_forward_hook(lambda *call: kinds.append(call[2].dtype))
    ids = _ids()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = model(ids.chunk(2)[dist.get_rank()]), reference(ids).chunk(2)[dist.get_rank()]
    assert set(kinds) == {torch.bfloat16}
    assert (found - expected).abs().max() < 0.05  # bf16 has three digits


@pytest.mark.parametrize("name", ["stacked", "looped"])
@on_ranks(2)
def test_bytes_on_the_wire_are_those_of_choices_that_live_elsewhere(name):
    count, away = CollectiveCount(), 0
    model = expert_models.build(name)
    dealt = deal_experts(model, _world(count))
    chosen = []
    for layer in model.layers:
        choose = layer.moe.choose
        layer.moe.choose = lambda x, choose=choose: (chosen.append(choose(x)[1]), choose(x))[1]
    _backward(model, _ids().chunk(2)[dist.get_rank()], _ids())
    rehearsed = 2 if name == "looped" else 1
    for index in chosen[::rehearsed]:
        away += int((index // 2 != dist.get_rank()).sum())
    elsewhere = torch.tensor(away)
    dist.all_reduce(elsewhere)
    came = int(elsewhere) - away
    row, layers = expert_models.WIDTH * 8, 2
    weights = away * 8 if name == "stacked" else 0  # its weights are used inside, so they travel as well
    assert count.num_bytes["all_to_all forward"] == (away + came) * row + weights
    assert count.calls["all_to_all forward"] == layers * (3 if weights else 2)
    assert count.num_bytes["all_to_all backward"] == (away + came) * row + (came * 8 if weights else 0)
    asked = 2 if name == "looped" else 1  # whether an expert is called at all is said beside how often
    assert count.num_bytes["all_to_all counts"] == layers * 2 * 8 * asked
    assert dealt.traffic.keys() == {each.path for each in dealt.found.sets}


@on_ranks(2)
def test_only_an_explicit_capacity_drops_choices_and_they_are_counted():
    model = _prefer_first(expert_models.build("looped"))
    free = copy.deepcopy(model)
    dealt = deal_experts(model, _world(), capacity_ratio=1.0)
    unlimited = deal_experts(free, _world())
    ids = _ids().chunk(2)[dist.get_rank()]
    model(ids), free(ids)
    # Of 12 tokens with 2 choices each, an expert takes 24 / 4; two experts are asked for 12 each.
    assert [each.dropped for each in dealt.traffic.values()] == [12, 12]
    assert [each.dropped for each in unlimited.traffic.values()] == [0, 0]


@on_ranks(2)
def test_a_copy_of_a_dealt_model_runs_with_its_own_weights():
    model = expert_models.build("stacked")
    deal_experts(model, _world())
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    ids = _ids()
    before = model(ids)
    assert not torch.equal(other(ids), before)
    assert torch.equal(model(ids), before)


class _Chained(expert_models.LoopedMoe):
    def forward(self, x):
        for expert in self.experts:
            x = x + expert(x)
        return x


@on_ranks(2)
def test_experts_that_feed_one_another_are_refused_by_name():
    model = expert_models.Model(_Chained).double()
    deal_experts(model, _world())
    with pytest.raises(LayoutError, match=r"layers\.0\.moe"):
        model(_ids())


@on_ranks(2)
def test_names_classes_and_attributes_stay_and_side_effects_happen_once():
    model = expert_models.build("looped")
    names = dict(model.named_modules()).keys()
    dealt = deal_experts(model, _world())
    assert dict(model.named_modules()).keys() == names
    moe = model.layers[0].moe
    assert type(moe).__name__ == "LoopedMoe"
    assert isinstance(moe, expert_models.LoopedMoe)
    assert len(moe.experts) == 4
    before = torch.get_rng_state()
    model(_ids())
    assert moe.forwards == 1
    assert torch.equal(torch.get_rng_state(), before)
    owned = {f"layers.0.moe.experts.{2 * dist.get_rank() + place}" for place in range(2)}
    assert set(dealt.units[0]) == owned
    stacked = expert_models.build("stacked")
    deal_experts(stacked, _world())
    stacked(_ids())
    assert stacked.layers[0].moe.experts.num_experts == 4


@on_ranks(2)
def test_auxiliary_losses_are_those_of_all_tokens_once():
    """PAR-15, LOS-08: linear in the coefficient, and the same on one device and on two."""
    reference = nn.Linear(8, 4, bias=False, dtype=torch.float64)
    nn.init.normal_(reference.weight, generator=torch.Generator().manual_seed(1))
    x = torch.randn(12, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    line = _world().ep
    mask = torch.tensor([1] * 9 + [0] * 3)
    grads = []
    for coefficient in (0.0, 0.01, 0.02):
        reference.weight.grad = None
        logits = reference(x)
        alone = balance_loss([logits], top_k=2, line=_alone(), mask=mask) + z_loss([logits], line=_alone(), mask=mask)
        (coefficient * alone).backward()
        expected, reference.weight.grad = reference.weight.grad.clone(), None
        # Unequal parts: each rank's share of the main loss's count weights the common value.
        rows = slice(0, 8) if dist.get_rank() == 0 else slice(8, 12)
        share = (8 if dist.get_rank() == 0 else 4) / 12
        logits = reference(x[rows])
        both = balance_loss([logits], top_k=2, line=line, mask=mask[rows]) + z_loss(
            [logits], line=line, mask=mask[rows]
        )
        assert both.item() == pytest.approx(alone.item(), rel=1e-12)
        (coefficient * share * both).backward()
        dist.all_reduce(reference.weight.grad)
        assert (reference.weight.grad - expected).abs().max() <= 1e-14
        grads.append(expected)
    assert grads[1].abs().max() > 0
    assert torch.allclose(grads[2], 2 * grads[1])


@on_ranks(2)
def test_selection_biases_move_by_the_load_of_all_ranks():
    from trireme.parallel.expert_balance import _BIAS

    model = _prefer_first(expert_models.build("stacked"))
    for layer in model.layers:
        layer.moe.gate.register_buffer(_BIAS, torch.zeros(4))
    world = _world()
    dealt = deal_experts(model, world)
    model(_ids().chunk(2)[dist.get_rank()])
    loads = update_selection_biases(model, dealt, rate=0.001, lines=(world.ep,))
    assert [each.tolist() for each in loads.values()] == [[24, 24, 0, 0]] * 2
    assert torch.allclose(model.layers[0].moe.gate.e_score_correction_bias, torch.tensor([-0.001] * 2 + [0.001] * 2))
    assert not update_selection_biases(model, dealt, rate=0.001, lines=(world.ep,))


def test_what_can_not_run_apart_stays_whole_and_is_named():
    class Normed(expert_models.StackedExperts):
        """Its experts meet in a sum over all of them."""

        def forward(self, x, index, weights):
            return super().forward(x, index, weights) / self.w1.sum()

    class Beyond(expert_models.StackedExperts):
        """The number past the last expert means the token itself."""

        def forward(self, x, index, weights):
            return super().forward(x, index, weights) + x * ((index >= self.num_experts) * weights).sum(
                -1, keepdim=True
            )

    class Batched(expert_models.Expert):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(expert_models.WIDTH)

        def forward(self, x):
            return self.norm(super().forward(x))

    for kind in (Normed, Beyond):
        found = find_experts(nn.ModuleDict({"experts": kind(4)}))
        assert not found.sets
        assert list(found.whole) == ["experts"]
    layer = nn.Module()
    layer.experts = nn.ModuleList([Batched() for _ in range(4)])
    assert list(find_experts(layer).whole) == ["experts"]
    layer.experts = nn.ModuleList([expert_models.Expert(24), expert_models.Expert(16)])
    assert list(find_experts(layer).whole) == ["experts"]
    layer.shared_experts = layer.experts
    del layer.experts
    found = find_experts(layer)
    assert not found.sets
    assert not found.whole


def test_a_model_on_meta_is_recognised_without_its_numbers():
    with torch.device("meta"):
        model = expert_models.Model(expert_models.StackedMoe, 64)
    assert [each.num_experts for each in find_experts(model).sets] == [64, 64]


def test_more_ranks_than_experts_are_refused_with_what_works():
    line = Line(rank=0, degree=8, group=None, count=CollectiveCount())
    with pytest.raises(LayoutError, match="ep = 4 works"):
        deal_experts(expert_models.build("looped"), ExpertRanks(ep=line, tp=_alone()))
