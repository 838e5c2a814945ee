"""Optimizers over a spread model: equal to one device whatever they need, or refused by name."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from trireme.errors import LayoutError
from trireme.mesh import run_on_ranks
from trireme.parallel import Kept, OptimizerKind, ParallelOptimizer, ParameterPart, count_copies, grad_norm, shard
from trireme.testing.ranks import on_ranks
from trireme.train.optim import step_scaled
from trireme.train.scaler import LossScaler

sys.path.insert(0, str(Path(__file__).parent))
from data_parallel_models import build

_ERROR = 1e-10
"""fp64; some updates divide by roots of tiny second moments, which enlarges the last bits."""

_STEPS = 3


def _parts(module, *, holders=None):
    world = dist.get_world_size()
    return [
        ParameterPart(name=name, parameter=each, copies=count_copies(each, holders=holders or world))
        for name, each in module.named_parameters()
    ]


def _give_gradients(alone, module, step):
    """Give both the same gradients, as if a backward had: a module's shards get their rows."""
    generator = torch.Generator().manual_seed(step)
    for (name, one), other in zip(alone.named_parameters(), module.parameters(), strict=True):
        if not one.requires_grad or name.startswith("unused"):
            continue
        one.grad = torch.randn(one.shape, generator=generator, dtype=one.dtype)
        other.grad = _like(one.grad, other)


def _like(whole, parameter):
    if not isinstance(parameter, DTensor):
        return whole.clone()
    rank, degree = dist.get_rank(), dist.get_world_size()
    chunks = whole.chunk(degree)
    local = chunks[rank] if rank < len(chunks) else whole[:0]
    return DTensor.from_local(
        local.clone(), parameter.device_mesh, parameter.placements, shape=whole.shape, stride=whole.stride()
    )


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _check(alone, module):
    for (name, one), other in zip(alone.named_parameters(), module.parameters(), strict=True):
        assert (_whole(other) - one).abs().max() <= _ERROR, name


def _matrices(module):
    return [each for each in module.parameters() if each.dim() == 2]


_OPTIMIZERS = {
    "sgd": lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "adam amsgrad": lambda module: torch.optim.Adam(module.parameters(), lr=0.1, amsgrad=True),
    "adamw fused": lambda module: torch.optim.AdamW(module.parameters(), lr=0.1, fused=True),
    "adamw foreach": lambda module: torch.optim.AdamW(module.parameters(), lr=0.1, foreach=True),
    "adagrad": lambda module: torch.optim.Adagrad(module.parameters(), lr=0.1),
    "rmsprop": lambda module: torch.optim.RMSprop(module.parameters(), lr=0.1, momentum=0.5),
    "adafactor": lambda module: torch.optim.Adafactor(module.parameters(), lr=0.1),
    "muon": lambda module: torch.optim.Muon(_matrices(module), lr=0.1),
}


def _step_beside_one_device(*, name):
    alone, module = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=2)
    one = _OPTIMIZERS[name](alone)
    optimizer = ParallelOptimizer(_OPTIMIZERS[name](module), parts=_parts(module))
    for step in range(_STEPS):
        _give_gradients(alone, module, step)
        one.step()
        optimizer.step()
    if name == "muon":  # Newton-Schulz runs in bf16, so whole inputs equal to the last bit are what makes it agree
        assert optimizer.kind is OptimizerKind.PER_TENSOR
    _check(alone, module)
    saved = optimizer.state_dict()
    fresh = ParallelOptimizer(_OPTIMIZERS[name](module), parts=_parts(module))
    fresh.load_state_dict(saved)
    _give_gradients(alone, module, 9)
    one.step()
    fresh.step()
    _check(alone, module)


@pytest.mark.parametrize("name", _OPTIMIZERS)
def test_an_optimizer_on_shards_equals_one_device_also_after_its_state_was_loaded(name):
    run_on_ranks(_step_beside_one_device, 4, name=name)


@on_ranks(2)
def test_state_of_a_gathered_optimizer_is_kept_cut():
    module, alone = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    optimizer = ParallelOptimizer(torch.optim.Muon(_matrices(module)), parts=_parts(module))
    _give_gradients(alone, module, 0)
    optimizer.step()
    for parameter, state in optimizer.state.items():
        assert state["momentum_buffer"].shape == parameter.to_local().shape
        assert optimizer.is_cut_like_parameter(parameter, "momentum_buffer")


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adagrad])
def test_an_optimizer_built_before_sharding_is_moved_with_the_state_it_has(kind):
    run_on_ranks(_build_before_sharding, 2, kind=kind)


def _build_before_sharding(*, kind):
    alone, module = build(), build()
    one = kind(alone.parameters(), lr=0.1)
    early = kind(module.parameters(), lr=0.1)
    for parameter, twin in zip(module.parameters(), alone.parameters(), strict=True):
        parameter.grad = torch.ones_like(parameter)
        twin.grad = torch.ones_like(twin)
    one.step()
    early.step()
    one.zero_grad()
    early.zero_grad()
    before = dict(module.named_parameters())
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    moved = {before[name]: parameter for name, parameter in module.named_parameters()}
    optimizer = ParallelOptimizer(early, parts=_parts(module), moved=moved)
    _give_gradients(alone, module, 0)
    one.step()
    optimizer.step()
    _check(alone, module)


@on_ranks(2)
def test_one_rank_with_a_nan_makes_every_rank_skip():
    module, alone = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    optimizer = ParallelOptimizer(torch.optim.AdamW(module.parameters()), parts=_parts(module))
    _give_gradients(alone, module, 0)
    if dist.get_rank() == 1:
        module.embedding.weight.grad.to_local()[0, 0] = float("nan")
    optimizer.step()
    assert not optimizer.last.is_updated
    assert not optimizer.state
    _check(alone, module)


@on_ranks(2)
def test_a_loss_scale_is_divided_out_once_and_hears_of_an_overflow():
    """AMP-03, AMP-05: norms and updates are those of unscaled gradients, clipping comes once a step."""
    module, alone = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    scaler = LossScaler(init_scale=1024.0)
    one = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = ParallelOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), parts=_parts(module), clip_grad_norm=0.5, scaler=scaler
    )
    _give_gradients(alone, module, 0)
    grads = [each.grad for each in alone.parameters() if each.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads).item()
    torch._foreach_mul_(grads, 0.5 / norm)
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad *= 1024.0
    one.step()
    optimizer.step()
    assert optimizer.last.norm == pytest.approx(norm)
    _check(alone, module)
    module.embedding.weight.grad.to_local()[0, 0] = float("inf")
    optimizer.step()
    assert scaler.scale == 512.0
    _check(alone, module)


@on_ranks(2)
def test_schedulers_groups_and_zero_grad_reach_the_wrapped_optimizer():
    module, alone = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    inner = torch.optim.AdamW(module.parameters(), lr=1.0)
    optimizer = ParallelOptimizer(inner, parts=_parts(module))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    _give_gradients(alone, module, 0)
    optimizer.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.5
    assert isinstance(inner.param_groups[0]["params"][0], DTensor)
    assert set(optimizer.state) <= set(module.parameters())
    optimizer.zero_grad()
    assert all(each.grad is None for each in module.parameters())


@on_ranks(2)
def test_a_training_steps_own_scaling_reaches_the_shards_once():
    module, alone = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    one = torch.optim.SGD(alone.parameters(), lr=0.1)
    optimizer = ParallelOptimizer(
        torch.optim.SGD(module.parameters(), lr=0.1), parts=_parts(module), clip_grad_norm=1e-3
    )
    _give_gradients(alone, module, 0)
    step_scaled(one, factor=0.25)
    step_scaled(optimizer, factor=0.25)
    _check(alone, module)


class _Joint(torch.optim.SGD):
    """Divides by the norm over all gradients."""

    @torch.no_grad()
    def step(self, closure=None):
        used = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in used]).norm()
        for p in used:
            p.sub_(0.1 / norm * p.grad)


@on_ranks(2)
def test_an_optimizer_that_mixes_tensors_is_refused_on_shards_and_right_on_whole_copies():
    module, alone, copied = build(), build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    with pytest.raises(LayoutError, match="_Joint"):
        ParallelOptimizer(_Joint(module.parameters()), parts=_parts(module))
    optimizer = ParallelOptimizer(_Joint(copied.parameters()), parts=_parts(copied))
    one = _Joint(alone.parameters())
    _give_gradients(alone, copied, 0)
    one.step()
    optimizer.step()
    _check(alone, copied)


@on_ranks(4)
def test_the_norm_counts_every_element_once_however_it_is_held():
    """Whole copies, halves of a tensor-parallel pair, a stretch that both keep, a tie on two stages, a lone owner."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    everywhere, cut, kept, tied, alone = torch.randn(5, 6, 4, generator=generator, dtype=torch.float64)
    half = slice(0, 3) if rank % 2 == 0 else slice(3, 6)
    parts = [
        _held("everywhere", everywhere, copies=4),
        _held("cut", cut[half], copies=2),
        # Rows 0 and 1 are kept by all four ranks, the other four are cut in two: two rows a rank.
        _held(
            "kept",
            torch.cat([kept[:2], kept[2:4] if rank % 2 == 0 else kept[4:]]),
            copies=2,
            kept=Kept(dim=0, ranges=((0, 2),), copies=4),
        ),
    ]
    if rank >= 1:
        parts.append(_held("tied", tied, copies=3))
        parts.append(parts[-1])  # named twice on one rank: the same parameter
    if rank == 2:
        parts.append(_held("alone", alone, copies=1))
    expected = torch.cat([each.flatten() for each in (everywhere, cut, kept, tied, alone)]).norm()
    assert abs(grad_norm(parts) - expected) <= _ERROR


def _held(name, gradient, *, copies, kept=None):
    parameter = nn.Parameter(torch.zeros_like(gradient))
    parameter.grad = gradient.clone()
    return ParameterPart(name=name, parameter=parameter, copies=copies, kept=kept)


@on_ranks(4)
def test_kept_stretches_are_counted_once_when_rows_are_cut_again():
    """A tensor-parallel share whose first five rows all ranks keep, cut over four ranks by ZeRO."""
    module = nn.Linear(3, 13, bias=False).double()
    gradient = torch.arange(39, dtype=torch.float64).view(13, 3)
    shard(module, [], group=dist.group.WORLD, zero=3)
    module.weight.grad = _like(gradient, module.weight)
    # As if two tensor-parallel ranks held the kept rows but only this grid of four ranks exists: halve them.
    part = ParameterPart(
        name="weight", parameter=module.weight, copies=1, kept=Kept(dim=0, ranges=((1, 5), (9, 2)), copies=2)
    )
    weights = torch.ones(13, 1, dtype=torch.float64)
    weights[1:6] = weights[9:11] = 0.5
    assert abs(grad_norm([part]) - (gradient.square() * weights).sum().sqrt()) <= _ERROR


@on_ranks(2)
def test_a_rank_without_gradients_still_agrees_on_the_norm_of_others():
    parts = [_held("one", torch.full((3,), 2.0), copies=1)] if dist.get_rank() == 0 else []
    assert grad_norm(parts).item() == pytest.approx(12.0**0.5)
