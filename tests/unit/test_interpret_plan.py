"""Plans: made without touching the module, from meta as from memory, with reasons and the cuts one would choose."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trireme.errors import LayoutError
from trireme.interpret import plan_tensor_parallel, shard_parameters


class Fused(nn.Module):
    """Fused q, k, v with ``num_heads`` heads of width 8, tied head."""

    def __init__(self, num_heads=4, num_layers=3):
        super().__init__()
        self.num_heads, width = num_heads, 8 * num_heads
        self.embed = nn.Embedding(40, width)
        self.layers = nn.ModuleList([self._layer(width) for _ in range(num_layers)])
        self.head = nn.Linear(width, 40, bias=False)
        self.head.weight = self.embed.weight

    def _layer(self, width):
        parts = {"norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width)}
        return nn.ModuleDict(parts)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            B, T, C = x.shape
            parts = layer["qkv"](layer["norm"](x)).chunk(3, -1)
            q, k, v = (each.view(B, T, self.num_heads, 8).transpose(1, 2) for each in parts)
            x = x + layer["out"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, T, C))
        return self.head(x)


_IDS = torch.arange(12).view(2, 6)


def _loss(logits):
    return F.cross_entropy(logits.flatten(0, 1), _IDS.flatten())


def test_a_fused_matrix_is_cut_within_q_k_and_v():
    plan = plan_tensor_parallel(Fused(), {"ids": _IDS}, degree=2, loss_fn=_loss)
    for layer in range(3):
        found = plan.parameters[f"layers.{layer}.qkv.weight"]
        assert (found.dim, found.split.segments) == (0, (32, 32, 32))
        assert plan.parameters[f"layers.{layer}.qkv.bias"].split == found.split
        assert plan.parameters[f"layers.{layer}.out.weight"].dim == 1
        assert plan.parameters[f"layers.{layer}.out.bias"].dim is None


def test_five_heads_on_two_ranks_are_cut_in_whole_heads():
    plan = plan_tensor_parallel(Fused(num_heads=5), {"ids": _IDS}, degree=2, loss_fn=_loss)
    assert plan.parameters["layers.0.qkv.weight"].split.parts == ((24, 16),) * 3
    assert plan.parameters["layers.0.out.weight"].split.parts == ((24, 16),)


def test_more_ranks_than_heads_leaves_attention_whole_and_says_why():
    plan = plan_tensor_parallel(Fused(num_heads=2), {"ids": _IDS}, degree=4, loss_fn=_loss)
    assert "layers.0.qkv.weight" in plan.whole
    assert all(plan.whole.values())
    assert plan.parameters["embed.weight"].dim == 0


def test_planning_from_meta_gives_the_same_plan_and_touches_nothing():
    with torch.device("meta"):
        empty = Fused()
    empty.head.weight = empty.embed.weight
    module = Fused()
    before = copy.deepcopy(module.state_dict())
    real = plan_tensor_parallel(module, {"ids": _IDS}, degree=2, loss_fn=_loss)
    assert plan_tensor_parallel(empty, {"ids": _IDS}, degree=2, loss_fn=_loss).parameters == real.parameters
    assert all(type(each) is nn.Parameter for each in module.parameters())
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_passes_do_not_grow_with_depth():
    plans = [plan_tensor_parallel(Fused(num_layers=n), {"ids": _IDS}, degree=2, loss_fn=_loss) for n in (2, 6)]
    assert plans[0].passes == plans[1].passes


def test_without_a_loss_the_head_stays_whole_and_so_does_what_it_is_tied_to():
    plan = plan_tensor_parallel(Fused(), {"ids": _IDS}, degree=2)
    assert {"embed.weight", "head.weight"} <= set(plan.whole)
    assert not plan.cuts_outputs
    assert plan_tensor_parallel(Fused(), {"ids": _IDS}, degree=2, loss_fn=_loss).cuts_outputs
    assert plan.parameters["layers.1.qkv.weight"].dim == 0


def test_par_09_sharding_keeps_tied_weights_one_parameter():
    module = Fused()
    plan = plan_tensor_parallel(module, {"ids": _IDS}, degree=2, loss_fn=_loss)
    shard_parameters(module, plan, rank=1)
    assert module.head.weight is module.embed.weight
    assert plan.ties == {"head.weight": "embed.weight"}
    held = sum(parameter.numel() for parameter in module.parameters())
    whole = sum(parameter.numel() for parameter in Fused().parameters())
    assert held / whole == plan.local_param_ratio(rank=1)


def test_a_plan_for_another_module_is_refused():
    plan = plan_tensor_parallel(Fused(), {"ids": _IDS}, degree=2, loss_fn=_loss)
    with pytest.raises(LayoutError, match=r"embed\.weight"):
        shard_parameters(Fused(num_heads=2), plan, rank=0)


def test_degree_one_cuts_nothing_away():
    plan = plan_tensor_parallel(Fused(), {"ids": _IDS}, degree=1, loss_fn=_loss)
    assert plan.local_param_ratio() == 1.0
