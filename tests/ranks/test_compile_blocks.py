"""Compiled blocks under layouts: loss, every gradient and weights equal one device; what can't be compiled says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.mesh import run_on_ranks
from trireme.parallel import MAX_PROGRAMS, ParallelModel, parallelize
from trireme.plan import parse_layout

WIDTH, ROWS = 16, 8
SAME = 1e-12
"""fp64: what the order of sums explains, relative to the largest element of a tensor."""

LAYOUTS = {"tp=2,zero3,recompute=full": 4, "tp=2,sp,pp=2": 4, "cp=2,zero2": 4, "dp=2,micro=2": 2}


class Block(nn.Module):
    """Causal attention and a gated layer, with a setting that people change."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(p)
        self.gain = 1.0
        self.calls = 0
        self.counts = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).view(x.shape[0], x.shape[1], 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape)
        x = x + self.drop(self.out(mixed))
        if self.counts:
            self.calls += 1
        return x + self.gain * self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """Four blocks and a tied head."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(32, WIDTH)
        self.blocks = nn.ModuleList(Block(p) for _ in range(4))
        self.double()

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.embedding.weight)


def make_batch(seed: int, *, rows: int = ROWS, seq_len: int = 8) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(32, (rows, seq_len), generator=random)
    return {"input_ids": ids, "labels": ids.roll(-1, 1)}


def call(module: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    result: Tensor = module(batch["input_ids"])
    return result


def loss_fn(outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    loss = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, (labels != -100).sum()


def spread(module: nn.Module, layout: str, *, kind: Any = "trace", notices: list[str] | None = None) -> ParallelModel:
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    told = [] if notices is None else notices
    example = make_batch(0, rows=2)
    return parallelize(module, parsed, example=example, call=call, loss_fn=loss_fn, compiled=kind, notice=told.append)


def step(model: ParallelModel, batch: dict[str, Tensor]) -> Tensor:
    line = model.axes["dp"]
    for parameter in model.parameters():
        parameter.grad = None
    return model.train_step({k: v.chunk(line.degree)[line.rank] for k, v in batch.items()}, loss_fn)


def check_equal(model: ParallelModel, reference: nn.Module, batch: dict[str, Tensor]) -> None:
    reference.zero_grad()
    loss_sum, count = loss_fn(call(reference, batch), batch)
    (loss_sum / count).backward()
    loss = step(model, batch)
    assert abs(float(loss) - float(loss_sum.detach() / count)) <= SAME * float(loss)
    for name, found in model.full_gradients().items():
        expected = reference.get_parameter(name).grad
        assert expected is not None
        assert float((found - expected).abs().max()) <= SAME * float(expected.abs().max()), name


def check_layout(layout: str, kind: str) -> None:
    reference = Model()
    model = spread(Model(), layout, kind=kind)
    lengths = (8, 12, 8) if kind == "trace" else (8, 8)
    for seed, seq_len in enumerate(lengths):
        check_equal(model, reference, make_batch(seed, seq_len=seq_len))
    compiler = model.how.compiler
    assert compiler is not None
    assert compiler.report.eager == {}
    assert compiler.report.num_programs == len(set(lengths)), "alike blocks share a program"
    assert len(compiler.report.recompiles) == len(set(lengths)) - 1
    if kind == "trace":
        (sentence,) = compiler.report.recompiles
        assert "x is (" in sentence, "names the argument"
        calls = model.module and (compiler.surroundings.binding or compiler.surroundings.context)
        assert calls is None or calls.count.total_calls > 0, "collectives inside of programs are counted"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_compiled_blocks_equal_one_device_in_every_layout_and_at_a_new_length(layout: str) -> None:
    run_on_ranks(check_layout, LAYOUTS[layout], layout=layout, kind="trace", timeout_s=200.0)


def test_blocks_compiled_to_kernels_equal_one_device_under_tensor_parallelism() -> None:
    run_on_ranks(check_layout, 2, layout="tp=2", kind="block", timeout_s=280.0)


def check_counts() -> None:
    """Collectives of a compiled step are as many as those of a step as written."""
    totals = []
    for kind in ("none", "trace"):
        model = spread(Model(), "tp=2", kind=kind)
        for seed in range(2):
            step(model, make_batch(seed))
        binding = model.runner.surroundings.binding  # type: ignore[attr-defined]
        totals.append((dict(binding.count.calls), dict(binding.count.num_bytes)))
    assert totals[0] == totals[1]


def check_settings() -> None:
    reference, module = Model(), Model()
    model = spread(module, "tp=2")
    check_equal(model, reference, make_batch(0))
    for each in (*reference.blocks, *module.blocks):
        each.gain = 0.5
    check_equal(model, reference, make_batch(1))
    compiler = model.how.compiler
    assert compiler is not None
    assert any("gain is 0.5, it was 1.0" in each for each in compiler.report.recompiles)
    for each in module.blocks:
        each.counts = True
    check_equal(model, reference, make_batch(2))
    assert all("calls" in reason for reason in compiler.report.eager.values())
    assert len(compiler.report.eager) == 4


def check_refusals() -> None:
    notices: list[str] = []
    model = spread(Model(p=0.5), "tp=2", notices=notices)
    step(model, make_batch(0))
    assert any("dropout" in each for each in notices)
    reference = Model()
    for layout, reason in {"cp=2,cp_kind=ring": "cp_kind=ring", "tp=2,recompute=selective": "recompute=full"}.items():
        model = spread(Model(), layout)
        check_equal(model, reference, make_batch(0))
        compiler = model.how.compiler
        assert compiler is not None
        assert all(reason in each for each in compiler.report.eager.values())
        assert len(compiler.report.eager) == 4
    model = spread(Model(), "tp=2")
    for length in range(4, 4 + MAX_PROGRAMS + 1):
        check_equal(model, reference, make_batch(0, rows=2, seq_len=length))
    assert model.how.compiler is not None
    assert all("pad batches" in each for each in model.how.compiler.report.eager.values())


@pytest.mark.parametrize("check", [check_counts, check_settings, check_refusals])
def test_programs_count_their_collectives_follow_settings_and_say_what_they_refuse(check: Any) -> None:
    run_on_ranks(check, 2, timeout_s=250.0)
