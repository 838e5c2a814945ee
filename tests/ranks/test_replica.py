"""Copies of weights in any layout: equal after steps, and one flipped bit is found with its parameter and rank."""

from __future__ import annotations

import pytest
import torch

from tests.ranks.test_parallel_composition import build_decoder, call, loss_fn, make_batch
from trireme.mesh import run_on_ranks
from trireme.parallel import local_shard, parallelize
from trireme.plan import parse_layout
from trireme.train import compare_replicas


def check(*, layout: str, odd: int) -> tuple[str, tuple[int, ...]] | None:
    """Train two steps, compare, flip a bit on one rank, compare again."""
    import torch.distributed as dist

    example = make_batch(0, rows=2, seq_len=8)
    model = parallelize(
        build_decoder(), parse_layout(layout, ranks=4).layout, example=example, call=call, loss_fn=loss_fn
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(2):
        line = model.axes["dp"]
        batch = make_batch(step, rows=8, seq_len=8)
        model.train_step({name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}, loss_fn)
        optimizer.step()
        optimizer.zero_grad()
    assert compare_replicas(model) is None
    if dist.get_rank() == odd:
        piece = next(piece for piece in model.pieces().values() if piece.tensor.numel())
        with torch.no_grad():
            local_shard(piece.tensor).view(-1)[:1].view(torch.uint8)[0] ^= 1
    found = compare_replicas(model)
    return None if found is None else (found.name, found.ranks)


@pytest.mark.parametrize(
    ("layout", "ranks"), [("dp=4", (2,)), ("hsdp=2x2", (0, 2)), ("tp=2,dp=2", (0, 2)), ("pp=2,dp=2", (2, 3))]
)
def test_one_flipped_bit_is_found_in_any_layout_with_copies(layout: str, ranks: tuple[int, ...]) -> None:
    """With more than two copies the odd one is named, with two both."""
    found = run_on_ranks(check, 4, layout=layout, odd=2, timeout_s=120.0)
    assert found[0] is not None
    assert found[0][1] == ranks
    assert all(each == found[0] for each in found), "every rank knows"
