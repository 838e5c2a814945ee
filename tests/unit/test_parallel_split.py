"""A backward in two halves gives what one gives, whatever the graph."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trireme.parallel.split import SplitBackward
from trireme.parallel.tracing_private import hooks_noted


class Twice(nn.Module):
    """Weights that are used several times, one beside another, one behind another."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(6), nn.Linear(6, 6)
        self.only = nn.Parameter(torch.linspace(0, 1, 6))

    def forward(self, x):
        y = self.linear(self.norm(x))
        y = self.linear(self.norm(y)) * self.only
        return y + (self.only * self.only.exp()).sum()


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.T, x.flatten(0, -2).T @ gradient.flatten(0, -2)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return Function.apply(Function.apply(x, self.weight).relu(), self.weight)


def _attention():
    return nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True)


@pytest.mark.parametrize(
    "build", [Twice, Own, _attention, lambda: nn.LSTM(6, 6)], ids=["twice", "own", "layer", "lstm"]
)
def test_two_halves_equal_one_backward(build):
    torch.manual_seed(0)
    module = build().double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)

    def outputs(given):
        found = module(given)
        return found[0] if isinstance(found, tuple) else found

    whole = x.clone().requires_grad_()
    gradient = torch.randn_like(x)
    outputs(whole).backward(gradient)
    expected = {name: each.grad.clone() for name, each in module.named_parameters()}

    module.zero_grad()
    seen = []
    for name, each in module.named_parameters():
        each.register_post_accumulate_grad_hook(lambda _, name=name: seen.append(name))
    leaf = x.clone().requires_grad_()
    split = SplitBackward(roots=[outputs(leaf)], gradients=[gradient], anchors=[leaf])
    split.to_inputs()
    torch.testing.assert_close(leaf.grad, whole.grad, rtol=1e-12, atol=1e-14)
    assert not seen
    assert all(each.grad is None for each in module.parameters())
    split.to_weights()
    assert sorted(seen) == sorted(expected)
    for name, each in module.named_parameters():
        torch.testing.assert_close(each.grad, expected[name], rtol=1e-12, atol=1e-14, msg=name)


def test_outputs_that_no_input_reaches_and_inputs_that_reach_no_output():
    weight = nn.Parameter(torch.ones(3))
    used, unused = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    roots = [used * 2, weight * 3]
    split = SplitBackward(roots=roots, gradients=[torch.ones(3), torch.ones(3)], anchors=[used, unused])
    split.to_inputs()
    assert unused.grad is None
    assert used.grad.tolist() == [2, 2, 2]
    assert weight.grad is None
    split.to_weights()
    assert weight.grad.tolist() == [3, 3, 3]


def test_the_second_half_computes_no_gradient_of_activations_again():
    linear = nn.Linear(4, 4)
    leaf = torch.randn(2, 4, requires_grad=True)
    middle = F.gelu(linear(leaf))
    split = SplitBackward(roots=[linear(middle)], gradients=[torch.ones(2, 4)], anchors=[leaf])
    split.to_inputs()
    calls = []
    middle.grad_fn.register_hook(lambda *_: calls.append(1))
    split.to_weights()
    assert not calls


def test_a_hook_that_changes_a_gradient_does_so_once_in_either_half():
    linear, head = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()
    leaf = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    seen, hooked = [], set()

    def run():
        middle = linear(leaf)
        middle.register_hook(lambda gradient: seen.append(1) or 3 * gradient)
        return head(middle.relu()).sum()

    run().backward()
    expected = [each.grad.clone() for each in (leaf, linear.weight, linear.bias)]
    for each in (leaf, linear.weight, linear.bias):
        each.grad = None
    with hooks_noted(hooked):
        root = run()
    split = SplitBackward(roots=[root], gradients=[torch.ones_like(root)], anchors=[leaf], hooked=hooked)
    split.to_inputs()
    split.to_weights()
    assert len(seen) == 2
    for each, gradient in zip((leaf, linear.weight, linear.bias), expected, strict=True):
        assert torch.equal(each.grad, gradient)
