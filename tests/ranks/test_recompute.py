"""Recomputation in layouts: the bits of the same layout without it, with frozen weights and low-rank additions too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import trireme
from tests.ranks.test_parallel_composition import ROWS, build_decoder, call, loss_fn, make_batch
from trireme.errors import LayoutError
from trireme.mesh import run_on_ranks
from trireme.parallel import ParallelModel, RecomputeRule, parallelize
from trireme.plan import parse_layout

SAME = 1e-14
"""fp64; what is computed again is computed in the same order."""
WAYS: dict[str, Any] = {
    "every second": RecomputeRule(kind="full", every=2),
    "two layers": RecomputeRule(kind="selective", layers=("*.1", "*.3")),
    "by plan": {"layers.0": "full", "layers.2": "selective"},
    "marked": None,
}


class LowRank(nn.Module):
    """A frozen linear layer with a small addition that is trained, as LoRA makes it."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Linear(inner.in_features, rank, bias=False, dtype=inner.weight.dtype)
        self.up = nn.Linear(rank, inner.out_features, bias=False, dtype=inner.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.up(self.down(x))


def build(frozen: bool) -> nn.Module:
    """A decoder that drops; frozen: blocks 1 and 2 whole, elsewhere only small additions are trained (REC-06)."""
    module = build_decoder(dropout=0.0 if frozen else 0.2)
    if frozen:
        torch.manual_seed(3)
        for parameter in module.parameters():
            parameter.requires_grad_(False)
        for number in (0, 3):
            feed = module.layers[number].mlp
            feed.down_proj = LowRank(feed.down_proj)
    return module


def steps_of(layout: str, way: str | None, *, frozen: bool) -> tuple[list[float], list[Tensor], ParallelModel]:
    module = build(frozen)
    rule = WAYS[way] if way else None
    if way == "marked":
        trireme.recompute(module.layers[1])
        trireme.recompute(module.layers[2].mlp, "selective")
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    model = parallelize(
        module, parsed, example=make_batch(0, rows=2, seq_len=8), call=call, loss_fn=loss_fn, recompute=rule, seed=1
    )
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    line, losses = model.axes["dp"], []
    for step in range(3):
        batch = make_batch(step, rows=ROWS, seq_len=12)
        part = {name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}
        losses.append(float(model.train_step(part, loss_fn)))
        optimizer.step()
        optimizer.zero_grad()
    weights = [each.detach().clone() for each in model.parameters()]
    return losses, [each.to_local() if hasattr(each, "to_local") else each for each in weights], model


def check_ways(layout: str, frozen: bool) -> None:
    losses, weights, _ = steps_of(layout, None, frozen=frozen)
    assert losses[2] != losses[0]
    for way in WAYS:
        found, other, model = steps_of(layout, way, frozen=frozen)
        assert found == pytest.approx(losses, rel=SAME), way
        assert all(torch.allclose(one, two, rtol=SAME, atol=SAME) for one, two in zip(weights, other, strict=True)), way
        check_evaluation(model)


def check_evaluation(model: ParallelModel) -> None:
    """REC-03: without gradients each block runs once a micro-batch and nothing is kept."""
    calls: list[int] = []
    kept: list[int] = []
    blocks = [block for block in model.module.layers if next(block.parameters(), None) is not None]
    hooks = [
        block.norm_1.register_forward_hook(lambda *_: calls.append(1)) if hasattr(block, "norm_1") else None
        for block in blocks
    ]
    batch = make_batch(9, rows=ROWS, seq_len=12)
    line = model.axes["dp"]
    part = {name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(1) or tensor, lambda tensor: tensor):
        model.eval_step(part, loss_fn)
    assert not kept
    assert all(hook is None for hook in hooks) or calls
    for hook in hooks:
        if hook is not None:
            hook.remove()


@pytest.mark.parametrize(("layout", "ranks"), [("tp=2", 2), ("zero3,dp=2", 2), ("pp=2,micro=4", 2)])
def test_what_single_layers_recompute_changes_no_bit(layout: str, ranks: int) -> None:
    run_on_ranks(check_ways, ranks, layout=layout, frozen=False, timeout_s=150.0)


def test_rec_06_frozen_blocks_low_rank_additions_and_full_sharding_go_with_recomputation() -> None:
    run_on_ranks(check_ways, 2, layout="zero3,dp=2", frozen=True, timeout_s=150.0)


def check_refusals() -> None:
    with pytest.raises(LayoutError, match="zb"):
        steps_of("pp=2,schedule=zb", "every second", frozen=False)
    rule = RecomputeRule(kind="full", layers=("layers.9",))
    example = make_batch(0, rows=2, seq_len=8)
    with pytest.raises(LayoutError, match=r"layers\.9"):
        parallelize(build_decoder(), "dp=2", example=example, call=call, recompute=rule)


def test_single_layers_meet_the_rules_of_the_layout() -> None:
    run_on_ranks(check_refusals, 2, timeout_s=100.0)
