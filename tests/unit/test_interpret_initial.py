"""Values of a module that was built without storage: recorded, then made by parts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.interpret import InitialValues, materialise, recorded

ORTHOGONAL = 1e-5
"""fp32 rounding of a product of two 16 x 16 matrices."""


class Net(nn.Module):
    """Most ways in which people fill parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 16, padding_idx=3)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.table.weight
        self.parts = nn.Linear(16, 24)
        self.square = nn.Linear(16, 16)
        self.cut = nn.Linear(16, 300, bias=False)
        self.conv = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        self.recurrent = nn.LSTM(4, 6)
        self.copied = copy.deepcopy(self.parts)
        self.scaled = nn.Parameter(torch.randn(12, 8) * 0.02)
        self.number = nn.Parameter(torch.tensor(2.5), requires_grad=False)
        self.steps = nn.Parameter(torch.log(torch.arange(1, 9, dtype=torch.float32)).repeat(4, 1))
        self.coarse = nn.Parameter(torch.empty(8, 8, dtype=torch.bfloat16).normal_(0, 1))
        nn.init.trunc_normal_(self.cut.weight, std=0.5, a=-1.0, b=1.0)
        nn.init.orthogonal_(self.square.weight)
        nn.init.xavier_normal_(self.parts.weight[:8])
        with torch.no_grad():
            self.parts.weight[:, 3:5] *= 0.0
            self.parts.bias.fill_(0.5)
            self.parts.bias[4:8].mul_(2.0)
        self.register_buffer("visible", torch.tril(torch.ones(6, 6, dtype=torch.bool)).view(1, 1, 6, 6))
        self.register_buffer("turns", 1.0 / 10000 ** (torch.arange(0, 8, 2).float() / 8), persistent=False)
        self.register_buffer("given", torch.tensor([1.0, 2.0, 4.0]))


def build() -> nn.Module:
    with recorded():
        module = Net()
    assert all(each.is_meta for each in (*module.parameters(), *module.buffers()))
    return module


def test_tensors_get_what_their_code_says() -> None:
    module, real = materialise(build(), seed=1), Net()
    assert bool((module.table.weight[3] == 0).all())
    assert float(module.table.weight[4:].detach().std()) == pytest.approx(1, 0.1)
    assert torch.equal(module.parts.bias, real.parts.bias)
    assert bool((module.parts.weight[:, 3:5] == 0).all())
    error = (module.square.weight @ module.square.weight.T - torch.eye(16)).abs().max().detach()
    assert float(error) < ORTHOGONAL
    assert float(module.cut.weight.detach().abs().max()) <= 1.0
    assert float(module.cut.weight.detach().std()) == pytest.approx(float(real.cut.weight.detach().std()), rel=0.05)
    assert torch.equal(module.copied.weight[8:, 5:], module.parts.weight[8:, 5:])
    assert torch.equal(module.steps, real.steps)
    assert torch.equal(module.number, real.number)
    for name, buffer in real.named_buffers():
        assert torch.equal(module.get_buffer(name), buffer), name


def test_formats_ties_and_what_is_frozen_stay() -> None:
    """PAR-09 on one device."""
    module, real = materialise(build(), seed=1), Net()
    assert module.head.weight is module.table.weight
    kinds, expected = (
        {name: (each.dtype, each.requires_grad, each.stride()) for name, each in model.named_parameters()}
        for model in (module, real)
    )
    assert kinds == expected
    assert set(module.state_dict()) == set(real.state_dict())
    assert [id(each) for each in module.recurrent._flat_weights] == [id(each) for each in module.recurrent.parameters()]


def test_any_part_has_the_numbers_of_the_whole() -> None:
    whole = materialise(build(), seed=1)
    initial = InitialValues(build(), seed=1)
    for name, expected in whole.named_parameters():
        for dim in range(expected.dim()):
            half = expected.shape[dim] // 2
            ranges = [((0, size),) for size in expected.shape]
            ranges[dim] = ((0, 1), (half, expected.shape[dim] - half))
            kept = torch.cat([expected.narrow(dim, 0, 1), expected.narrow(dim, half, expected.shape[dim] - half)], dim)
            part = torch.empty_like(kept).detach()
            initial.fill(name, part, ranges=ranges)
            assert torch.equal(part, kept), (name, dim)
    assert initial.made_whole == {"square.weight", "steps"}


def test_numbers_follow_from_seed_and_name() -> None:
    one, again, other = (materialise(build(), seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.parts.weight, again.parts.weight)
    assert not torch.equal(one.parts.weight, other.parts.weight)
    assert not torch.equal(one.recurrent.weight_ih_l0[:, 0], one.recurrent.weight_hh_l0[:, 0])


def test_construction_that_nobody_saw_is_made_up_for_by_the_modules_own_methods() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.Linear):
                nn.init.constant_(module.weight, 0.25)

    with torch.device("meta"):
        module = Small()
    told: list[str] = []
    materialise(module, seed=0, notice=told.append)
    assert bool((module.linear.weight == 0.25).all())
    assert bool((module.norm.running_var == 1).all())
    assert len(told) == 1
    assert "recorded" in told[0]


class Forgotten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.kept = nn.Parameter(torch.empty(3))


def test_what_nobody_fills_is_refused_by_name() -> None:
    with torch.device("meta"):
        unseen = Forgotten()
    with recorded():
        seen = Forgotten()
    for module in (unseen, seen):
        with pytest.raises(LayoutError, match="kept"):
            materialise(module)


def test_what_is_filled_in_part_is_refused_by_name() -> None:
    with recorded():
        module = nn.Module()
        module.part = nn.Parameter(torch.empty(6))
        nn.init.ones_(module.part[:4])
    with pytest.raises(LayoutError, match="part"):
        materialise(module)


def test_real_modules_stay_as_they_are() -> None:
    module = nn.Linear(2, 2)
    before: Tensor = module.weight.detach().clone()
    assert torch.equal(materialise(module).weight, before)
