"""All stages of a module one after the other in this process, each over a copy of its own, against the whole."""

import copy
import sys
from pathlib import Path

import torch

from trireme.parallel import StageSet, capture, choose_cuts

sys.path.insert(0, str(Path(__file__).parents[1] / "ranks"))
import pipeline_models as models


def cut_module(module, given, num_stages, *, call=models.call, cuts=None):
    """A stage set for each stage."""
    trace = capture(module, given, call=call)
    cuts = cuts or choose_cuts(trace, num_stages=num_stages)
    return [
        StageSet(copy.deepcopy(module), trace, cuts=cuts, stages=(stage,), num_stages=num_stages, call=call)
        for stage in range(num_stages)
    ]


def run_chain(sets, given, *, loss=models.loss_of):
    """Forward and backward through all stages; gives the loss and every gradient, summed over holders."""
    leaves, made = [()], []
    for stage, each in enumerate(sets):
        output = each.forward(stage, given, leaves[-1])
        made.append(output.to_send)
        leaves.append([tensor.detach().requires_grad_(tensor.requires_grad) for tensor in output.to_send])
    total = loss(output.outputs, given, 0)
    total.backward()
    for stage in reversed(range(len(sets) - 1)):
        pairs = [
            (x, leaf.grad) for x, leaf in zip(made[stage], leaves[stage + 1], strict=True) if leaf.grad is not None
        ]
        torch.autograd.backward([x for x, _ in pairs], [gradient for _, gradient in pairs])
    sums = {}
    for each in sets:
        for name, parameter in each.module.named_parameters(remove_duplicate=False):
            if parameter.grad is not None:
                sums[name] = sums.get(name, 0) + parameter.grad
    return total.detach(), sums


def check_chain(module, given, num_stages, *, call=models.call, loss=models.loss_of, cuts=None):
    """Compare a chain with the module itself; gives the stage sets."""
    whole = copy.deepcopy(module)
    sets = cut_module(module, given, num_stages, call=call, cuts=cuts)
    found, gradients = run_chain(sets, given, loss=loss)
    expected = loss(call(whole, given), given, 0)
    expected.backward()
    torch.testing.assert_close(found, expected.detach(), rtol=1e-9, atol=0)
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        assert (parameter.grad is None) == (name not in gradients), name
        if parameter.grad is not None:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-15, msg=name)
    return sets
