"""What ZeRO holds, gathers and sends, and the modules it must cope with."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from trireme.mesh import run_on_ranks
from trireme.parallel import ParallelOptimizer, ParameterPart, count_copies, held_rows, shard
from trireme.parallel.rows import rows_of
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
from data_parallel_models import Block, build, global_batch, loss_sum

_ERROR = 1e-12
"""fp64, sums in another order."""


def _step(module, sync, step=0, *, num_microbatches=1, call=None):
    ids, targets = global_batch(step, rows=dist.get_world_size() * num_microbatches)
    first = dist.get_rank() * num_microbatches
    sync.start_step(num_microbatches)
    for row in range(first, first + num_microbatches):
        is_last = row == first + num_microbatches - 1
        logits = module(ids[row : row + 1]) if call is None else call(module, ids[row : row + 1], row)
        sync.before_backward(0, is_last=is_last)
        loss_sum(logits, targets[row : row + 1]).backward()
        sync.after_backward(0, is_last=is_last)
    sync.finish()


def _alone(module, step=0, *, rows, call=None):
    ids, targets = global_batch(step, rows=rows)
    for row in range(rows):
        logits = module(ids[row : row + 1]) if call is None else call(module, ids[row : row + 1], row)
        loss_sum(logits, targets[row : row + 1]).backward()


def _check_gradients(alone, module):
    for (name, one), (other, parameter) in zip(alone.named_parameters(), module.named_parameters(), strict=True):
        assert name == other
        assert (one.grad is None) == (parameter.grad is None), name
        if one.grad is not None:
            whole = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            assert (whole - one.grad).abs().max() <= _ERROR, name


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _num_bytes(tensors):
    return sum(_local(each).numel() * _local(each).element_size() for each in tensors if each is not None)


def _held_bytes(module, *, rank, degree):
    """Theory: each parameter's rows rounded up per rank, scalars whole."""
    total = 0
    for parameter in module.parameters():
        rows = rows_of(parameter.shape[0], rank=rank, degree=degree)[1] if parameter.dim() else 1
        total += rows * (parameter.numel() // (parameter.shape[0] if parameter.dim() else 1)) * 8
    return total


@on_ranks(2, 4)
def test_a_rank_holds_its_share_of_parameters_gradients_and_state():
    whole, module = build(), build()
    world, rank = dist.get_world_size(), dist.get_rank()
    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    parts = [
        ParameterPart(name=name, parameter=each, copies=count_copies(each, holders=world))
        for name, each in module.named_parameters()
    ]
    optimizer = ParallelOptimizer(torch.optim.AdamW(module.parameters()), parts=parts)
    _step(module, sync)
    optimizer.step()
    expected = _held_bytes(whole, rank=rank, degree=world)
    assert _num_bytes(module.parameters()) == expected
    with_gradient = [each for each in module.parameters() if each.grad is not None]
    states = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    assert _num_bytes([each.grad for each in with_gradient]) == _num_bytes(with_gradient)
    assert _num_bytes(states) == 2 * _num_bytes(with_gradient)
    everything = torch.tensor(float(expected))
    dist.all_reduce(everything)
    extra = sum(8 for each in whole.parameters() if not each.dim()) * (world - 1)
    assert everything.item() == sum(each.numel() for each in whole.parameters()) * 8 + extra


def _padded_bytes(parameters, degree):
    return sum(-(-each.shape[0] // degree) * degree * (each.numel() // each.shape[0]) * 8 for each in parameters)


@pytest.mark.parametrize(
    ("zero", "gathers", "sums"),
    [(1, 1, 1), (2, 1, 3), (3, None, 3)],
)
def test_calls_and_bytes_of_a_step_are_those_of_theory(zero, gathers, sums):
    """Three micro-batches: zero 1 gathers and sums once, 2 gathers once, 3 gathers each block twice a micro-batch."""
    (traffic, *_) = run_on_ranks(_count_traffic, 2, zero=zero)
    whole = build()
    blocks = [[each for each in block.parameters() if each.dim()] for block in whole.blocks]
    inside = {each for block in blocks for each in block}
    own = [each for each in whole.parameters() if each.dim() and each not in inside]
    trained = [each for each in (*own, *(e for block in blocks for e in block)) if each.requires_grad]
    if zero == 3:
        assert traffic.calls["all_gather"] == 3 * (2 * len(blocks) + 1)
        block_bytes = sum(_padded_bytes(block, 2) for block in blocks)
        assert traffic.moved_bytes["all_gather"] == 3 * (2 * block_bytes + _padded_bytes(own, 2))
    else:
        assert traffic.calls["all_gather"] == gathers * (len(blocks) + 1)
        assert traffic.moved_bytes["all_gather"] == gathers * _padded_bytes([*own, *inside], 2)
    assert traffic.calls["reduce_scatter"] == sums * (len(blocks) + 1)
    assert traffic.moved_bytes["reduce_scatter"] == sums * _padded_bytes(trained, 2)


def _count_traffic(*, zero):
    module = build()
    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=zero)
    for step in range(2):
        _step(module, sync, step, num_microbatches=3)
    return sync.traffic


@on_ranks(4)
def test_the_ranges_a_rank_holds_tile_every_tensor():
    """13 rows on 4 ranks, 3 rows on 4 ranks: what each rank would write covers the whole exactly once."""
    whole, module = build(), build()
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    for (name, one), parameter in zip(whole.named_parameters(), module.parameters(), strict=True):
        offset, length = held_rows(parameter)
        pieces = [None] * 4
        dist.all_gather_object(pieces, (offset, length, _local(parameter).detach()))
        if not one.dim():
            continue
        seen = torch.zeros(one.shape[0], dtype=torch.long)
        for start, size, local in pieces:
            assert local.shape[0] == size
            assert torch.equal(one[start : start + size], local), name
            seen[start : start + size] += 1
        assert bool((seen == 1).all()), name


@on_ranks(2)
def test_a_module_on_meta_gets_its_rows_one_by_one_and_stays_tied():
    """PAR-09."""
    whole = build()
    with torch.device("meta"):
        module = build()
    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    wanted = dict(whole.named_parameters())
    largest = [0]

    def fill(name, rows, offset):
        largest[0] = max(largest[0], rows.numel())
        rows.copy_(wanted[name][offset : offset + len(rows)] if rows.dim() else wanted[name])

    sync.materialise(device=torch.device("cpu"), fill=fill)
    assert module.head.weight is module.embedding.weight
    assert largest[0] in (49 * 8, 48 * 8)  # half of 97 rows: never the whole matrix
    names = [name for name, _ in module.named_parameters()]
    assert len(names) == len(list(whole.parameters()))
    _step(module, sync)
    _alone(whole, rows=2)
    _check_gradients(whole, module)


class _Conditional(nn.Module):
    """Runs a whole block for some rows only."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(97, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.head = nn.Linear(8, 97)

    def forward(self, ids, stops_gradient_in):
        x = self.embedding(ids)
        for index, block in enumerate(self.blocks):
            y = block(x)
            x = x + y.detach() if index == stops_gradient_in else y
        return self.head(x)


@pytest.mark.parametrize("zero", [1, 2])
def test_a_block_that_one_ranks_backward_skips_is_summed_in_order(zero):
    run_on_ranks(_skip_blocks, 2, zero=zero)


def _skip_blocks(*, zero):
    torch.manual_seed(3)
    torch.set_default_dtype(torch.float64)
    alone = _Conditional()
    torch.manual_seed(3)
    module = _Conditional()
    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=zero)

    def call(model, ids, row):
        return model(ids, stops_gradient_in=2 if row == 0 else None)

    for step in range(2):
        _step(module, sync, step, num_microbatches=2, call=call)
        _alone(alone, step, rows=4, call=call)
    _check_gradients(alone, module)


class _Twice(nn.Module):
    """One block used twice, and two blocks that share a matrix."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(97, 8)
        self.again = Block(8)
        self.first, self.second = Block(8), Block(8)
        self.second.up.weight = self.first.up.weight
        self.head = nn.Linear(8, 97)

    def forward(self, ids):
        x = self.again(self.embedding(ids))
        return self.head(self.again(self.second(self.first(x))))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_blocks_used_twice_and_blocks_that_share_a_matrix_are_exact(zero):
    run_on_ranks(_use_twice, 2, zero=zero)


def _use_twice(*, zero):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    alone = _Twice()
    torch.manual_seed(3)
    module = _Twice()
    blocks = [module.again, module.first, module.second, module.again]
    sync = shard(module, blocks, group=dist.group.WORLD, zero=zero)
    assert sync.merged == 2
    assert module.second.up.weight is module.first.up.weight
    for step in range(2):
        _step(module, sync, step, num_microbatches=2)
        _alone(alone, step, rows=4)
    _check_gradients(alone, module)


@on_ranks(2)
def test_evaluation_and_failed_steps_between_steps_change_nothing():
    alone, module = build(), build()
    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=2)
    ids, targets = global_batch(5, rows=2)
    shards = list(module.parameters())
    with torch.no_grad():
        module(ids)
        for parameter in (*shards, *alone.parameters()):
            _local(parameter).mul_(1.5)  # weights change while an evaluation's gathered ones are still there
    sync.start_step(2)
    loss_sum(module(ids), targets).backward()  # and then something raises
    _step(module, sync)
    _alone(alone, rows=2)
    _check_gradients(alone, module)


@on_ranks(2)
def test_several_train_steps_before_an_update_add_up():
    alone, module = build(), build()
    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    for step in range(3):
        # The optional part has a gradient in the middle step only; later steps must not drop it.
        _step(module, sync, step, call=lambda model, ids, row, step=step: model(ids, use_extra=step == 1))
        _alone(alone, step, rows=2, call=lambda model, ids, row, step=step: model(ids, use_extra=step == 1))
    _check_gradients(alone, module)


class _WithTable(nn.Module):
    """Rotary-like: a buffer whose precision matters."""

    def __init__(self):
        super().__init__()
        self.register_buffer("phase", torch.arange(4096.0)[:, None] * torch.tensor([1.0, 0.37]), persistent=False)
        self.block = nn.Linear(2, 2)
        self.router = nn.Linear(2, 2, bias=False)

    def forward(self, x):
        cos = self.phase.cos()
        return self.block(x.bfloat16()).float() * cos[-1] + self.router(x)


@on_ranks(2)
def test_gathering_in_bf16_leaves_buffers_shards_and_other_formats_as_they_are():
    """AMP-08."""
    module = _WithTable()
    table = module.phase.clone()
    module.router.double()
    sync = shard(
        module,
        [module.block],
        group=dist.group.WORLD,
        zero=3,
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        apart=list(module.router.parameters()),
    )
    computed_in = []
    module.block.register_forward_pre_hook(lambda layer, _: computed_in.append(layer.weight.dtype))
    sync.start_step(1)
    module.router.float()
    loss = module(torch.ones(1, 2)).sum()
    sync.before_backward(0, is_last=True)
    loss.backward()
    sync.after_backward(0, is_last=True)
    sync.finish()
    assert computed_in == [torch.bfloat16]
    assert torch.equal(module.phase, table)
    assert module.phase.dtype == torch.float32
    assert module.block.weight.dtype == module.block.weight.grad.dtype == torch.float32
    assert module.router.weight.grad.dtype == torch.float32  # apart: untouched, unsummed


@on_ranks(2)
def test_a_few_parameters_of_another_format_stay_whole_and_are_summed():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2).double())
    module.forward = lambda x: module[1](module[0](x).double())
    sync = shard(module, [], group=dist.group.WORLD, zero=3)
    assert set(sync.kept_whole) == {"1.weight", "1.bias"}
    sync.start_step(1)
    loss = module(torch.full((1, 8), float(dist.get_rank() + 1))).sum()
    sync.before_backward(0, is_last=True)
    loss.backward()
    sync.after_backward(0, is_last=True)
    sync.finish()
    assert torch.equal(module[1].bias.grad, torch.full((2,), 2.0, dtype=torch.float64))


@on_ranks(2)
def test_whole_tensors_are_marked_once_by_name_and_keep_the_mark():
    module, marked = build(), []

    def mark(name, parameter):
        marked.append(name)
        parameter.own_mark = name

    sync = shard(module, list(module.blocks), group=dist.group.WORLD, zero=3, on_gathered=mark)
    seen = []
    module.blocks[1].up.register_forward_pre_hook(lambda layer, _: seen.append(layer.weight.own_mark))
    for step in range(2):
        _step(module, sync, step)
    assert seen == ["blocks.1.up.weight"] * 2
    assert sorted(marked) == sorted(name for name, each in module.named_parameters() if each.dim())


@on_ranks(2)
def test_names_types_and_attributes_of_the_module_stay():
    whole, module = build(), build()
    module.blocks[0].remark = "kept"
    shard(module, list(module.blocks), group=dist.group.WORLD, zero=3)
    assert list(module.state_dict()) == list(whole.state_dict())
    assert isinstance(module.blocks[0], Block)
    assert module.blocks[0].remark == "kept"
    assert [name for name, _ in module.named_modules()] == [name for name, _ in whole.named_modules()]
