"""Whether an optimizer may step on shards: by name where it is known, else by trying it on tiny tensors.

The trial runs a copy of the user's own optimizer, with its own settings, on a tensor of a few elements: once whole
and once in two parts that don't meet. Equal results mean that it treats every element by itself, so shards are as
good as wholes. If not, two tensors are stepped together and one after the other: equal results mean that it treats
every tensor by itself, so each can be gathered, stepped whole and cut again. An optimizer that is neither mixes
tensors.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import LayoutError
from trireme.parallel.fsdp_private import local_shard


class OptimizerKind(Enum):
    """On what an optimizer must step."""

    ELEMENTWISE = "any part of a tensor"
    PER_TENSOR = "whole tensors, one by one"
    JOINT = "all tensors together"


_ELEMENTWISE: tuple[type[torch.optim.Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)

_REFUSED: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.LBFGS: "parallel.optimizer_lbfgs",
    torch.optim.SparseAdam: "parallel.optimizer_sparse",
}

_TOLERANCE = 1e-5
"""Of the largest update; fp32 sums in another order differ by a few 1e-7, a norm over half a tensor by tens of %."""

_STEPS = 4
"""Enough for bias corrections and momentum to differ where they depend on a tensor's extent."""

_SHAPES: dict[int, tuple[int, ...]] = {1: (10,), 2: (6, 4), 3: (6, 4, 5)}
"""By number of dims, all lengths different: a state's shape then tells whether it is laid out like the parameter."""


def refuse_by_name(optimizer: torch.optim.Optimizer) -> None:
    """Refuse optimizers that no layout of several ranks can run.

    Raises:
        LayoutError: It is one of them.
    """
    for kind, key in _REFUSED.items():
        if isinstance(optimizer, kind):
            raise LayoutError(key, name=type(optimizer).__name__)


def judge_optimizer(optimizer: torch.optim.Optimizer) -> OptimizerKind:
    """Tell on what an optimizer must step; nothing of it changes."""
    if type(optimizer) in _ELEMENTWISE:
        return OptimizerKind.ELEMENTWISE
    with torch.random.fork_rng(devices=[]):
        if _passes(_halves_agree, optimizer):
            return OptimizerKind.ELEMENTWISE
        if _passes(_turns_agree, optimizer):
            return OptimizerKind.PER_TENSOR
    return OptimizerKind.JOINT


def state_like_parameter(optimizer: torch.optim.Optimizer) -> dict[int, frozenset[str]]:
    """Give by number of dims which state entries have the parameter's own shape, and so are cut like it."""
    found: dict[int, set[str]] = {}
    with torch.random.fork_rng(devices=[]):
        for group, dims in _cases(optimizer):
            trial = _copy_of(optimizer)
            parameter = _tiny(_SHAPES[dims], like=optimizer, seed=1)
            _step(trial, group, [[parameter]], [torch.ones_like(parameter)])
            entries = trial.state[parameter].items()
            like = {key for key, value in entries if isinstance(value, Tensor) and value.shape == parameter.shape}
            found.setdefault(dims, set()).update(like)
    return {dims: frozenset(keys) for dims, keys in found.items()}


def _passes(check: Any, optimizer: torch.optim.Optimizer) -> bool:
    try:
        return all(check(optimizer, group, dims) for group, dims in _cases(optimizer))
    except Exception:  # whatever a stranger's optimizer raises on tiny tensors: then it isn't shown to be exact
        return False


def _cases(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, int]]:
    """Yield each group with each number of dims that its parameters have; scalars are never cut."""
    for number, group in enumerate(optimizer.param_groups):
        for dims in sorted({min(parameter.dim(), 3) for parameter in group["params"]} - {0}):
            yield number, dims


def _halves_agree(optimizer: torch.optim.Optimizer, group: int, dims: int) -> bool:
    whole = _tiny(_SHAPES[dims], like=optimizer, seed=1)
    cut = whole.shape[0] // 3
    halves = [nn.Parameter(part.detach().clone()) for part in (whole[:cut], whole[cut:])]
    start = whole.detach().clone()
    # Each half in an optimizer of its own, as on ranks that know nothing of each other.
    one, two, three = (_copy_of(optimizer) for _ in range(3))
    for step in range(_STEPS):
        gradient = _gradient(whole, step)
        _step(one, group, [[whole]], [gradient])
        _step(two, group, [halves[:1]], [gradient[:cut]])
        _step(three, group, [halves[1:]], [gradient[cut:]])
    return _agree(start, whole, torch.cat([half.detach() for half in halves]))


def _turns_agree(optimizer: torch.optim.Optimizer, group: int, dims: int) -> bool:
    together = [_tiny(_SHAPES[dims], like=optimizer, seed=seed) for seed in (1, 2)]
    in_turn = [nn.Parameter(each.detach().clone()) for each in together]
    start = [each.detach().clone() for each in together]
    one, two = _copy_of(optimizer), _copy_of(optimizer)
    for step in range(_STEPS):
        gradients = [_gradient(each, step + 10 * number) for number, each in enumerate(together)]
        _step(one, group, [together], gradients)
        _step(two, group, [[each] for each in in_turn], gradients)
    return all(_agree(*each) for each in zip(start, together, in_turn, strict=True))


@torch.no_grad()
def _agree(start: Tensor, one: Tensor, two: Tensor) -> bool:
    moved = (one - start).abs().max()
    return bool(moved.isfinite()) and bool((one - two).abs().max() <= _TOLERANCE * moved)


def _step(
    optimizer: torch.optim.Optimizer, group: int, turns: Sequence[Sequence[nn.Parameter]], gradients: Sequence[Tensor]
) -> None:
    """Step once a turn, on its parameters alone."""
    left = list(gradients)
    for parameters in turns:
        for each in optimizer.param_groups:
            each["params"] = []
        optimizer.param_groups[group]["params"] = list(parameters)
        for parameter in parameters:
            parameter.grad = left.pop(0).clone()
        optimizer.step()


def _copy_of(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Copy an optimizer without parameters, state and hooks, but with whatever else its author keeps in it."""
    memo: dict[int, Any] = {id(optimizer.state): defaultdict(dict)}
    for group in optimizer.param_groups:
        memo[id(group["params"])] = []
        memo.update({id(parameter): None for parameter in group["params"]})
    kept = {
        key: OrderedDict() if key.endswith("_hooks") else value
        for key, value in vars(optimizer).items()
        if key != "step"  # a scheduler's wrapper would step the original
    }
    trial = object.__new__(type(optimizer))
    trial.__dict__.update(copy.deepcopy(kept, memo))
    return trial


def _tiny(shape: tuple[int, ...], *, like: torch.optim.Optimizer, seed: int) -> nn.Parameter:
    """Give a small parameter where the optimizer's own are."""
    first = next(parameter for group in like.param_groups for parameter in group["params"])
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return nn.Parameter(values.to(local_shard(first).device))


def _gradient(parameter: Tensor, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 + step)
    values = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
    # Rows of very different size, so that anything computed over a tensor shows.
    sizes = torch.linspace(0.1, 3.0, parameter.shape[0]).view(-1, *[1] * (parameter.dim() - 1))
    return (values * sizes).to(parameter)
