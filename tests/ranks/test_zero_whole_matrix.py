"""Optimizers that need whole matrices, on a model that several axes cut: equal to one device."""

import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from trireme.mesh import run_on_ranks
from trireme.parallel import RangeGather, parallel_optimizer, parallelize
from trireme.plan import parse_layout
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
from test_parallel_composition import build_decoder, call, loss_fn, make_batch, reference_step

_ERROR = 1e-10
"""fp64 but for Newton-Schulz, which Muon runs in bf16: inputs equal to 1e-15 round to the same bf16 but for ties."""

_MUON_ERROR = 2e-3
"""Where an input lies between two bf16 numbers, one step of lr 0.1 may differ by bf16's last bit."""


def _matrices(module):
    return [each for each in module.parameters() if each.dim() == 2 and each.requires_grad]


def _train(*, layout, kind):
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    reference = build_decoder()
    model = parallelize(build_decoder(), parsed, example=make_batch(0, rows=2, seq_len=8), call=call, loss_fn=loss_fn)
    optimizer = parallel_optimizer(kind(_matrices(model.module), lr=0.1), model)
    one = kind(_matrices(reference), lr=0.1)
    for step in range(2):
        batch = make_batch(step, rows=8, seq_len=16)
        reference_step(reference, batch)
        line = model.axes["dp"]
        model.train_step({name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}, loss_fn)
        one.step()
        optimizer.step()
        optimizer.zero_grad()
    error = _MUON_ERROR if kind is torch.optim.Muon else _ERROR
    for name, whole in model.full_parameters().items():
        assert (whole - reference.get_parameter(name)).abs().max() <= error, name


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Muon])
@pytest.mark.parametrize("layout", ["tp=2,zero2", "tp=2,pp=2"])
def test_whole_matrices_are_gathered_over_every_axis_that_cuts_them(layout, kind):
    run_on_ranks(_train, 4, layout=layout, kind=kind)


@on_ranks(2)
def test_shares_with_stretches_that_both_keep_make_a_whole_and_come_back():
    whole = torch.arange(42.0).view(7, 6)
    # Rows 0-1 and 6 are kept by both; of rows 2-5 the first rank has three.
    ranges = (((0, 2), (2, 3), (6, 1)), ((0, 6),)) if dist.get_rank() == 0 else (((0, 2), (5, 1), (6, 1)), ((0, 6),))
    share = RangeGather(global_shape=(7, 6), ranges=ranges, group=dist.group.WORLD)
    local = share.keep(whole)
    assert local.shape == ((6, 6) if dist.get_rank() == 0 else (4, 6))
    assert torch.equal(share.gather(local), whole)
