"""AdamW and its groups."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.train_pieces import TinyLM, section
from trireme.errors import TrainError
from trireme.train import build_optimizer, group_parameters
from trireme.train.optim import step_scaled

ONE_ROUNDING = 2.0**-23
"""p * (1 - lr * wd) may differ from the exact product by one fp32 rounding."""


def _step_with_zero_gradients(module, **keys):
    settings = section(**keys)
    optimizer = build_optimizer(module, settings)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return optimizer


def test_cfg_05_decay_shrinks_matrices_by_lr_times_decay_and_leaves_norms_and_biases():
    module = TinyLM()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    _step_with_zero_gradients(module, lr=0.1, weight_decay=0.1)
    for name, after in module.named_parameters():
        if after.dim() >= 2:
            exact = before[name].double() * (1 - 0.1 * 0.1)
            assert torch.allclose(after.double(), exact, rtol=ONE_ROUNDING, atol=0), name
            assert not torch.equal(after, before[name]), name
        else:
            assert torch.equal(after, before[name]), name


def test_cfg_05_the_table_lists_each_group_with_its_count():
    module = TinyLM()
    groups = {group.name: group for group in group_parameters(module, weight_decay=0.1)}
    assert groups["matrices"].weight_decay == 0.1
    assert groups["vectors"].weight_decay == 0.0
    assert sum(group.num_params for group in groups.values()) == sum(p.numel() for p in module.parameters())
    assert "norm.weight" in groups["vectors"].parameter_names
    assert "embed.weight" in groups["matrices"].parameter_names


def test_a_tied_parameter_is_updated_once():
    groups = group_parameters(TinyLM(tied=True), weight_decay=0.1)
    names = [name for group in groups for name in group.parameter_names]
    assert "embed.weight" in names
    assert "head.weight" not in names


def test_frozen_parameters_are_left_out():
    module = TinyLM()
    module.embed.weight.requires_grad_(False)
    names = [name for group in group_parameters(module, weight_decay=0.1) for name in group.parameter_names]
    assert "embed.weight" not in names


def test_a_model_with_nothing_to_train_is_refused():
    module = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(TrainError, match="nothing to train"):
        build_optimizer(module, section())


def test_rate_zero_and_decay_zero_leave_every_bit():
    module = TinyLM()
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    optimizer = build_optimizer(module, section(lr=0.0, weight_decay=0.0))
    for _ in range(3):
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    for name, after in module.named_parameters():
        assert torch.equal(after.view(torch.int32), before[name].view(torch.int32)), name


def test_the_update_is_adamw_as_published():
    """One matrix, three steps, against the paper's formulas in fp64."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2, bias=False)
    optimizer = build_optimizer(module, section(lr=0.01, weight_decay=0.1, beta1=0.9, beta2=0.95))
    weight = module.weight.detach().double().clone()
    first = torch.zeros_like(weight)
    second = torch.zeros_like(weight)
    for step in range(1, 4):
        grad = torch.randn(2, 3)
        module.weight.grad = grad
        optimizer.step()
        first = 0.9 * first + 0.1 * grad.double()
        second = 0.95 * second + 0.05 * grad.double() ** 2
        unbiased = (first / (1 - 0.9**step)) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
        weight = weight * (1 - 0.01 * 0.1) - 0.01 * unbiased
    assert torch.allclose(module.weight.double(), weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("factor", [1.0, 0.37, 1 / 65536, 4.0])
def test_a_factor_read_by_the_fused_kernel_equals_scaled_gradients(factor):
    weights = []
    for fused in (True, False):
        torch.manual_seed(0)
        parameter = nn.Parameter(torch.randn(64, 8))
        optimizer = torch.optim.AdamW([parameter], lr=0.01, fused=fused, foreach=False)
        for _ in range(3):
            parameter.grad = torch.randn(64, 8) / factor
            step_scaled(optimizer, factor=factor)
        assert not hasattr(optimizer, "grad_scale")
        weights.append(parameter.detach())
    assert torch.allclose(*weights, rtol=1e-5, atol=1e-7)
