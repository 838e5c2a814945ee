"""What counts as equal: scale, zeros, missing names, numbers that are not finite."""

import math

import pytest
import torch
from torch import nn

from trireme.verify import StepTrace, Trace, compare
from trireme.verify.compare import DOUBLE, SINGLE, tensor_error
from trireme.verify.reference import norm_of
from trireme.verify.stir import stir_constants
from trireme.verify.trace import first_names, held_elements

_HALF_ULP = 6e-8


def _trace(gradients, *, loss=2.0, parameters=None):
    own = [value for name, value in gradients.items() if name != "head.weight"]
    step = StepTrace(loss=loss, grad_norm=norm_of(own), gradients=gradients)
    return Trace(steps=(step,), parameters=parameters or {})


def _gradients():
    generator = torch.Generator().manual_seed(0)
    big, small = torch.randn(8, 8, generator=generator), 1e-3 * torch.randn(8, generator=generator)
    return {"w": big, "b": small, "k_proj.bias": torch.full((8,), 1e-9)}


def _compare(one, other, tolerance=SINGLE, ties=None):
    return compare(one, other, tolerance=tolerance, ties=ties or {})


def test_a_gradient_that_is_truly_zero_raises_no_alarm():
    other = _gradients()
    other["k_proj.bias"] = -3 * other["k_proj.bias"]
    assert _compare(_trace(_gradients()), _trace(other)).is_equal


def test_rounding_raises_no_alarm_and_half_a_small_gradient_does():
    rounded = {name: value * (1 + _HALF_ULP) for name, value in _gradients().items()}
    assert _compare(_trace(_gradients()), _trace(rounded)).is_equal
    halved = {**_gradients(), "b": _gradients()["b"] / 2}
    found = _compare(_trace(_gradients()), _trace(halved))
    assert not found.is_equal
    assert found.worst_names()[0] == "b"


def test_in_fp64_a_mistake_of_fp32_size_is_seen():
    gradients = {name: value.double() for name, value in _gradients().items()}
    other = {name: value * (1 + _HALF_ULP) for name, value in gradients.items()}
    assert not _compare(_trace(gradients), _trace(other), DOUBLE).is_equal


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_what_is_not_finite_is_never_equal(number):
    broken = _gradients()
    broken["w"] = broken["w"].clone()
    broken["w"][0, 0] = number
    found = _compare(_trace(_gradients()), _trace(broken))
    assert not found.is_equal
    assert found.worst_names()[0] == "w"
    assert not _compare(_trace(_gradients()), _trace(_gradients(), loss=number)).is_equal


def test_a_gradient_that_only_one_side_has_is_named():
    fewer = {name: value for name, value in _gradients().items() if name != "b"}
    assert _compare(_trace(_gradients()), _trace(fewer)).missing == ("b",)
    found = _compare(_trace(fewer), _trace(_gradients()))
    assert found.extra == ("b",)
    assert not found.is_equal


def test_a_further_name_of_a_tied_parameter_is_compared_and_not_extra():
    ties = {"w": "w", "b": "b", "k_proj.bias": "k_proj.bias", "head.weight": "w"}
    both = {**_gradients(), "head.weight": _gradients()["w"]}
    assert _compare(_trace(_gradients()), _trace(both), ties=ties).is_equal
    both["head.weight"] = both["head.weight"] * 0.5
    found = _compare(_trace(_gradients()), _trace(both), ties=ties)
    assert not found.is_equal
    assert found.worst_names()[0] == "head.weight"


def test_another_shape_is_not_equal_and_an_empty_tensor_is():
    assert tensor_error(torch.ones(3), torch.ones(4), floor=1.0) == math.inf
    assert tensor_error(torch.ones(0), torch.ones(0), floor=0.0) == 0.0
    assert tensor_error(torch.zeros(3), torch.full((3,), 1e-30), floor=0.0) == math.inf


def test_the_first_wrong_step_names_the_weights_to_look_at():
    first, wrong = _gradients(), {**_gradients(), "b": -_gradients()["b"]}
    later = {name: -value for name, value in _gradients().items()}
    norm = norm_of(first.values())
    expected = Trace(steps=(StepTrace(loss=1.0, grad_norm=norm, gradients=first),) * 2, parameters={})
    found = Trace(
        steps=tuple(StepTrace(loss=1.0, grad_norm=norm, gradients=each) for each in (wrong, later)), parameters={}
    )
    assert _compare(expected, found).worst_names() == ["b"]


def test_constant_parameters_are_stirred_alike_everywhere_and_others_are_left():
    modules = [nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    before = modules[0][0].weight.detach().clone()
    assert [stir_constants(module, seed=3) for module in modules] == [("1.weight", "1.bias")] * 2
    assert torch.equal(modules[0][1].bias, modules[1][1].bias)
    assert len(set(modules[0][1].bias.tolist())) == 4
    assert torch.equal(modules[0][0].weight, before)


def test_tied_names_lead_to_the_first_and_storage_is_counted_once():
    module = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    module["head"].weight = module["embed"].weight
    assert first_names(module) == {"embed.weight": "embed.weight", "head.weight": "embed.weight"}
    assert held_elements([*module.parameters(), torch.empty(7, device="meta")]) == 15
