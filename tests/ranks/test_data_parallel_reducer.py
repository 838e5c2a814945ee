"""The bucketed reducer: what it sends and when, what it refuses, and what it survives."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trireme.errors import LayoutError
from trireme.mesh import run_on_ranks
from trireme.parallel import all_reduce_bucket, replicate
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
from data_parallel_models import build, global_batch, loss_sum


def _backward(module, step=0, row=None, **options):
    ids, targets = global_batch(step, rows=dist.get_world_size())
    row = dist.get_rank() if row is None else row
    loss_sum(module(ids[row : row + 1], **options), targets[row : row + 1]).backward()


def _step(module, sync, step=0, **options):
    sync.start_step(1)
    sync.before_backward(0, is_last=True)
    _backward(module, step, **options)
    sync.after_backward(0, is_last=True)
    sync.finish()


def _drop(module):
    for parameter in module.parameters():
        parameter.grad = None


@on_ranks(2)
def test_buckets_follow_the_order_of_backward_and_hold_every_trained_parameter_once():
    module = build()
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2000)
    _step(module, sync)
    names = [name for bucket in sync.bucket_names for name in bucket]
    assert sorted(names) == sorted(name for name, each in module.named_parameters() if each.requires_grad)
    heard = [name for name in names if name.startswith("blocks.")]
    assert heard.index("blocks.2.down.weight") < heard.index("blocks.1.down.weight") < heard.index("blocks.0.up.weight")
    assert set(names[-4:]) == {"unused.weight", "unused.bias", "sometimes.weight", "sometimes.bias"}
    assert all(len(bucket) for bucket in sync.bucket_names)


@on_ranks(2)
def test_calls_and_bytes_of_a_step_are_those_of_theory():
    module = build()
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2000)
    for step in range(2):
        _step(module, sync, step)
        _drop(module)
    trained = [each for each in module.parameters() if each.requires_grad]
    assert sync.traffic.calls == {"all_reduce": len(sync.bucket_names), "agree": 1}
    assert sync.traffic.moved_bytes["all_reduce"] == sum(each.numel() for each in trained) * 8
    assert sync.traffic.moved_bytes["agree"] == len(list(module.parameters()))


@on_ranks(2)
def test_gradients_lie_in_their_buckets_and_cost_no_second_copy():
    module = build()
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2000)
    for step in range(3):
        _step(module, sync, step)
    storages = {each.grad.untyped_storage().data_ptr() for each in module.parameters() if each.grad is not None}
    assert len(storages) <= len(sync.bucket_names)


class _Slow(nn.Module):
    """Early buckets are sent while later layers still compute."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return x.sum()


@on_ranks(2)
def test_communication_starts_while_backward_goes_on_and_the_overlap_is_told():
    module = _Slow()
    sent_before_the_end = []
    sync = replicate(
        module,
        group=dist.group.WORLD,
        bucket_bytes=256 * 256 * 4,
        exchange=lambda bucket: sent_before_the_end.append(is_running[0]) or all_reduce_bucket(bucket),
    )
    is_running = [False]
    for _ in range(2):
        sent_before_the_end.clear()
        sync.start_step(1)
        loss = module(torch.randn(512, 256))
        sync.before_backward(0, is_last=True)
        is_running[0] = True
        loss.backward()
        is_running[0] = False
        sync.after_backward(0, is_last=True)
        sync.finish()
    assert sum(sent_before_the_end) >= len(sync.bucket_names) - 1
    assert sync.traffic.communication_s > 0
    assert 0 <= sync.traffic.overlap_ratio <= 1


@on_ranks(2)
def test_the_first_step_sends_nothing_early_and_ranks_agree_on_one_order():
    module = build()
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=500)
    # Ranks whose own order differs: one uses a part of the model that the other doesn't.
    _step(module, sync, use_extra=dist.get_rank() == 1)
    gathered = [None, None]
    dist.all_gather_object(gathered, sync.bucket_names)
    assert gathered[0] == gathered[1]


@on_ranks(2)
def test_a_hook_in_the_place_of_the_sum_sees_every_bucket():
    """A seam for compression: here the sum is computed in bf16."""
    module, seen = build(torch.float32), []

    class _Rounded:
        def __init__(self, bucket):
            self.bucket, self.small = bucket, bucket.flat.bfloat16()
            self.work = dist.all_reduce(self.small, group=bucket.group, async_op=True)

        def wait(self):
            self.work.wait()
            self.bucket.flat.copy_(self.small)

    def exchange(bucket):
        seen.append(bucket.names)
        return _Rounded(bucket)

    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2000, exchange=exchange)
    _step(module, sync)
    assert tuple(seen) == sync.bucket_names
    gradient = module.embedding.weight.grad
    assert torch.equal(gradient, gradient.bfloat16().float())
    assert gradient.abs().max() > 0


@on_ranks(2)
def test_sums_in_fp32_of_gradients_in_bf16_round_once():
    module = nn.Linear(4, 4, bias=False).bfloat16()
    sync = replicate(module, group=dist.group.WORLD, reduce_dtype=torch.float32)
    sync.start_step(1)
    sync.before_backward(0, is_last=True)
    value = 1.0 if dist.get_rank() == 0 else 2.0**-8  # bf16 holds 1 + 2^-7, not 1 + 2^-8
    (module.weight * value).sum().backward()
    sync.after_backward(0, is_last=True)
    sync.finish()
    assert module.weight.grad.dtype == torch.bfloat16
    assert sync.traffic.moved_bytes["all_reduce"] == 16 * 4
    assert torch.equal(module.weight.grad, torch.full((4, 4), 1.0 + 2.0**-8).bfloat16())


@on_ranks(2)
def test_several_train_steps_before_an_update_add_up():
    module, twin = build(), build()
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=2000)
    for step in range(3):
        _step(module, sync, step)
        for row in range(2):
            _backward(twin, step, row=row)
    for (name, one), other in zip(twin.named_parameters(), module.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        assert one.grad is None or (one.grad - other.grad).abs().max() < 1e-12, name


@on_ranks(2)
def test_a_step_that_an_error_ended_leaves_nothing_behind():
    module, twin = build(), build()
    sync = replicate(module, group=dist.group.WORLD, bucket_bytes=500)
    _step(module, sync)
    _drop(module)
    sync.start_step(1)
    sync.before_backward(0, is_last=True)
    _backward(module, 1)  # and no finish
    _step(module, sync, 2)
    for row in range(2):
        _backward(twin, 2, row=row)
    for (name, one), other in zip(twin.named_parameters(), module.parameters(), strict=True):
        assert one.grad is None or (one.grad - other.grad).abs().max() < 1e-12, name


@on_ranks(2)
def test_unfreezing_a_parameter_later_sums_it_too():
    module = build()
    sync = replicate(module, group=dist.group.WORLD)
    _step(module, sync)
    _drop(module)
    module.frozen.requires_grad_(True)
    _step(module, sync)
    alone = build()
    alone.frozen.requires_grad_(True)
    for row in range(2):
        _backward(alone, row=row)
    assert (module.frozen.grad - alone.frozen.grad).abs().max() < 1e-12


@on_ranks(2)
def test_a_sparse_gradient_is_refused_by_name():
    module = nn.Sequential(nn.Embedding(5, 3, sparse=True))
    sync = replicate(module, group=dist.group.WORLD)
    sync.start_step(1)
    sync.before_backward(0, is_last=True)
    with pytest.raises(LayoutError, match=r"0\.weight.*sparse=False"):
        module(torch.tensor([1])).sum().backward()


class _Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))


@on_ranks(2)
def test_a_gradient_that_comes_after_its_sum_was_sent_is_refused_by_name():
    module = _Shared()
    sync = replicate(module, group=dist.group.WORLD)
    for step in range(2):
        sync.start_step(1)
        sync.before_backward(0, is_last=True)
        module.weight.sum().backward()
        if step == 1:
            with pytest.raises(LayoutError, match="weight"):
                module.weight.sum().backward()
            return
        sync.after_backward(0, is_last=True)
        sync.finish()


@on_ranks(2)
def test_a_parameter_that_gets_several_gradients_in_one_backward_is_sent_after_it():
    """Reentrant recomputation runs a backward inside the backward."""
    module = _Shared()
    sync = replicate(module, group=dist.group.WORLD)
    for _ in range(2):
        module.weight.grad = None
        sync.start_step(1)
        sync.before_backward(0, is_last=True)
        for _ in range(2):
            module.weight.sum().backward()
        sync.after_backward(0, is_last=True)
        sync.finish()
        assert torch.equal(module.weight.grad, torch.full((3,), 4.0))


def _one_rank_group():
    module = build()
    own = dist.new_group([dist.get_rank()], use_local_synchronization=True)
    sync = replicate(module, group=own)
    _step(module, sync)
    return sync.traffic.calls, module.embedding.weight.grad is not None


def test_a_group_of_one_sends_nothing():
    assert run_on_ranks(_one_rank_group, 2) == [({}, True)] * 2
