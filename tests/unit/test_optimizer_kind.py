"""Which optimizers may step on shards: known by name, or found out on tiny tensors."""

import pytest
import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.parallel import OptimizerKind, ParallelOptimizer, judge_optimizer, move_parameters
from trireme.parallel.optimizer_kind import state_like_parameter


def _parameters(*shapes):
    return [nn.Parameter(torch.ones(shape)) for shape in shapes]


class _Lion(torch.optim.Optimizer):
    """Sign of an interpolated momentum: elementwise; keeps something of its own beside groups and state."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})
        self.beta = 0.9

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                p.sub_(group["lr"] * (self.beta * momentum + (1 - self.beta) * p.grad).sign())
                momentum.lerp_(p.grad, 0.01)


class _Lars(torch.optim.Optimizer):
    """Learning rate by the ratio of a tensor's norms: needs whole tensors."""

    def __init__(self, params, lr=1e-3):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.norm() / p.grad.norm() * p.grad)


class _Joint(_Lars):
    """Learning rate by the norm over all gradients: mixes tensors."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            used = [p for p in group["params"] if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in used]).norm()
            for p in used:
                p.sub_(group["lr"] / norm * p.grad)


class _Counting(_Lars):
    """Counts steps in the group: stepping its tensors in turn counts too often."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] / group["k"] * p.norm() * p.grad)


class _Raises(_Lars):
    def step(self, closure=None):
        raise RuntimeError("needs a device that isn't there")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (torch.optim.SGD, OptimizerKind.ELEMENTWISE),
        (torch.optim.Adam, OptimizerKind.ELEMENTWISE),
        (torch.optim.AdamW, OptimizerKind.ELEMENTWISE),
        (torch.optim.Adagrad, OptimizerKind.ELEMENTWISE),
        (torch.optim.RMSprop, OptimizerKind.ELEMENTWISE),
        (torch.optim.Adafactor, OptimizerKind.PER_TENSOR),
        (_Lion, OptimizerKind.ELEMENTWISE),
        (_Lars, OptimizerKind.PER_TENSOR),
        (_Joint, OptimizerKind.JOINT),
        (_Counting, OptimizerKind.JOINT),
        (_Raises, OptimizerKind.JOINT),
    ],
)
def test_an_optimizer_is_judged_by_what_it_does(kind, expected):
    optimizer = kind(_parameters((5, 3), (4,), (2, 3, 4)), lr=0.1)
    assert judge_optimizer(optimizer) is expected


def test_muon_takes_whole_matrices():
    assert judge_optimizer(torch.optim.Muon(_parameters((5, 3)))) is OptimizerKind.PER_TENSOR


@pytest.mark.parametrize(
    "kind", [torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adadelta, torch.optim.Rprop]
)
def test_what_is_known_by_name_passes_the_trial_too(kind):
    class Stranger(kind):
        pass

    assert judge_optimizer(Stranger(_parameters((5, 3), (4,)), lr=0.1)) is OptimizerKind.ELEMENTWISE


def test_a_trial_leaves_parameters_state_random_numbers_and_a_schedulers_step_alone():
    parameters = _parameters((5, 3))
    optimizer = _Lars(parameters, lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    parameters[0].grad = torch.ones(5, 3)
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    judge_optimizer(optimizer)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(parameters[0].detach(), torch.ones(5, 3))
    assert not optimizer.state
    assert optimizer.param_groups[0]["params"] == parameters


def test_state_laid_out_like_the_parameter_is_told_from_factors():
    like = state_like_parameter(torch.optim.Adafactor(_parameters((5, 3), (4,))))
    assert like == {1: frozenset({"variance"}), 2: frozenset()}
    assert state_like_parameter(torch.optim.Muon(_parameters((5, 3)))) == {2: frozenset({"momentum_buffer"})}


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_optimizers_that_no_layout_can_run_are_refused_by_name(kind):
    with pytest.raises(LayoutError, match=kind.__name__):
        ParallelOptimizer(kind(_parameters((5, 3))), parts=[])


def test_a_parameter_that_is_not_the_models_is_refused():
    with pytest.raises(LayoutError, match="5x3"):
        ParallelOptimizer(torch.optim.SGD(_parameters((5, 3))), parts=[])


def test_state_of_whole_parameters_that_cannot_be_cut_is_refused():
    whole, share = _parameters((5, 3), (2, 3))
    optimizer = torch.optim.AdamW([whole])
    whole.grad = torch.ones(5, 3)
    optimizer.step()
    with pytest.raises(LayoutError, match="AdamW"):
        move_parameters(optimizer, {whole: share})


def test_a_parameter_that_a_rank_no_longer_holds_leaves_the_optimizer():
    whole, other = _parameters((5, 3), (2, 3))
    optimizer = torch.optim.Adagrad([whole, other])
    move_parameters(optimizer, {whole: None})
    assert optimizer.param_groups[0]["params"] == [other]
    assert list(optimizer.state) == [other]
