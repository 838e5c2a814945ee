"""Whole copies and every stage of ZeRO: losses, gradients by name, norm and weights of one device."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from trireme.mesh import run_on_ranks
from trireme.parallel.optimizer import ParallelOptimizer
from trireme.parallel.part import ParameterPart, count_copies
from trireme.parallel.replicate import replicate
from trireme.parallel.shard import shard

sys.path.insert(0, str(Path(__file__).parent))
from data_parallel_models import build, global_batch, loss_sum

_ERROR_FP64 = 1e-12
"""Only the order of sums differs, a few ulps at these sizes; a lost or doubled gradient is off by its own size."""

_ERROR_FP32 = 3e-6
"""Gradients here are below 1; fp32 sums of some hundred terms in another order differ by a few 1e-7."""

_WEIGHT_FP32 = 2e-4
"""AdamW divides by the root of the second moment, so a tiny gradient's rounding moves a weight by up to lr x 1 %."""

_CLIP = 0.05
"""Below every norm of these steps, so clipping is always at work."""

_STEPS = 3


def _grid(replicas, shards):
    """Give this rank's groups on a grid of copies and shards; every rank makes all of them."""
    rows = [[copy * shards + each for each in range(shards)] for copy in range(replicas)]
    own_row, _ = dist.new_subgroups_by_enumeration(rows)
    own_column, _ = dist.new_subgroups_by_enumeration([list(column) for column in zip(*rows, strict=True)])
    return own_row, own_column


def _spread(module, *, zero, replicas):
    world = dist.group.WORLD
    if zero == 0:
        return replicate(module, group=world, bucket_bytes=2000)
    if replicas == 1:
        return shard(module, list(module.blocks), group=world, zero=zero)
    row, column = _grid(replicas, dist.get_world_size() // replicas)
    return shard(module, list(module.blocks), group=row, replicate_group=column, whole_group=world, zero=zero)


def _whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _parts(module):
    world = dist.get_world_size()
    return [
        ParameterPart(name=name, parameter=parameter, copies=count_copies(parameter, holders=world))
        for name, parameter in module.named_parameters()
    ]


def _reference_step(module, ids, targets, *, count, extra_row):
    """One device: each row by itself, so that optional parts run for the same rows as on the ranks."""
    total = 0.0
    for row in range(len(ids)):
        loss = loss_sum(module(ids[row : row + 1], use_extra=row == extra_row), targets[row : row + 1]) / count
        loss.backward()
        total += loss.item()
    return total


def _rank_step(module, sync, ids, targets, *, count, extra_row, num_microbatches):
    """One rank: its rows in micro-batches of one row."""
    first = dist.get_rank() * num_microbatches
    total = torch.zeros((), dtype=torch.float64)
    sync.start_step(num_microbatches)
    for row in range(first, first + num_microbatches):
        is_last = row == first + num_microbatches - 1
        loss = loss_sum(module(ids[row : row + 1], use_extra=row == extra_row), targets[row : row + 1]) / count
        sync.before_backward(0, is_last=is_last)
        loss.backward()
        sync.after_backward(0, is_last=is_last)
        total += loss.detach().double()
    sync.finish()
    dist.all_reduce(total)
    return total.item()


def _check_gradients(reference, module, *, error):
    for (name, one), (other, parameter) in zip(reference.named_parameters(), module.named_parameters(), strict=True):
        assert name == other
        gradient = None if parameter.grad is None else _whole(parameter.grad)
        assert (gradient is None) == (one.grad is None), name
        if gradient is not None:
            assert (gradient - one.grad).abs().max() <= error, name


def _clip(module):
    """Clip to the limit itself; torch's own function stops a millionth short of it."""
    grads = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(grads)
    assert norm > _CLIP
    torch._foreach_mul_(grads, _CLIP / norm.item())
    return norm


def _train_beside_one_device(*, zero, replicas, accumulation, dtype):
    reference, module = build(dtype, has_experts=True), build(dtype, has_experts=True)
    sync = _spread(module, zero=zero, replicas=replicas)
    optimizer = ParallelOptimizer(
        torch.optim.AdamW(module.parameters(), lr=1e-2), parts=_parts(module), clip_grad_norm=_CLIP
    )
    one = torch.optim.AdamW(reference.parameters(), lr=1e-2)
    error = _ERROR_FP64 if dtype == torch.float64 else _ERROR_FP32
    for step in range(_STEPS):
        ids, targets = global_batch(step, rows=dist.get_world_size() * accumulation)
        count = (targets != -100).sum()
        extra_row = 0 if step == 1 else None  # a part of the model that one micro-batch of one rank uses
        loss = _reference_step(reference, ids, targets, count=count, extra_row=extra_row)
        spread_loss = _rank_step(
            module, sync, ids, targets, count=count, extra_row=extra_row, num_microbatches=accumulation
        )
        assert spread_loss == pytest.approx(loss, rel=error, abs=error)
        _check_gradients(reference, module, error=error)
        norm = _clip(reference)
        one.step()
        optimizer.step()
        assert optimizer.last.norm == pytest.approx(norm.item(), rel=10 * error)
        one.zero_grad()
        optimizer.zero_grad()
    weight_error = 1e-7 if dtype == torch.float64 else _WEIGHT_FP32
    for (name, expected), parameter in zip(reference.named_parameters(), module.parameters(), strict=True):
        assert (_whole(parameter) - expected).abs().max() <= weight_error, name
    assert module.head.weight is module.embedding.weight


_LAYOUTS = {
    "dp2": (2, 0, 1),
    "dp4": (4, 0, 1),
    "zero1 on 2": (2, 1, 1),
    "zero2 on 4": (4, 2, 1),
    "zero3 on 2": (2, 3, 1),
    "zero3 on 4": (4, 3, 1),
    "zero1 hsdp 2x2": (4, 1, 2),
    "zero2 hsdp 2x2": (4, 2, 2),
    "zero3 hsdp 2x2": (4, 3, 2),
    "zero3 hsdp 2x1": (2, 3, 2),
}


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("layout", _LAYOUTS)
def test_three_clipped_steps_equal_one_device_in_fp64(layout, accumulation):
    """PAR-01, PAR-02, PAR-16, PAR-18, PAR-19, LOS-01, LOS-04: unequal token counts and a row without any, ties, experts without tokens, unused and
    frozen parameters, scalars, 13 rows on 4 ranks, 3 rows on 4 ranks."""
    num_ranks, zero, replicas = _LAYOUTS[layout]
    run_on_ranks(
        _train_beside_one_device,
        num_ranks,
        zero=zero,
        replicas=replicas,
        accumulation=accumulation,
        dtype=torch.float64,
    )


@pytest.mark.parametrize("layout", ["dp2", "zero1 on 2", "zero2 on 4", "zero3 hsdp 2x2"])
def test_three_clipped_steps_equal_one_device_in_fp32(layout):
    """PAR-18."""
    num_ranks, zero, replicas = _LAYOUTS[layout]
    run_on_ranks(_train_beside_one_device, num_ranks, zero=zero, replicas=replicas, accumulation=3, dtype=torch.float32)
