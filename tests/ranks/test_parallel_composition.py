"""Layouts of several axes at once, through ``parallelize``: loss, every gradient, norm and weights equal one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from trireme.config import ModelSection
from trireme.mesh import run_on_ranks
from trireme.models import build_model, call_model, set_dropout_clock
from trireme.parallel import ParallelModel, parallelize
from trireme.plan import parse_layout

VOCAB, ROWS = 97, 8
SAME = 1e-12
"""fp64: what the order of sums explains, relative to the largest element of a tensor."""
SAME_EXPERTS = 1e-6
"""Mixtral's norms and rotary angles are fp32 whatever its parameters are."""
RATE = 0.5

LAYOUTS = {
    "dp=2,micro=3": 2,
    "tp=2,zero3,recompute=full": 4,
    "pp=2,zero3": 4,
    "pp=2,schedule=zb,zero2": 4,
    "tp=2,pp=2,recompute=selective": 4,
    "hsdp=2x2": 4,
    "cp=2,zero3,recompute=selective": 4,
    "cp=2,pp=2,cp_kind=ring": 4,
    "tp=2,sp,pp=2": 4,
    "tp=2,sp,cp=2,recompute=full": 4,
    "tp=2,pp=2,zero3,schedule=interleaved": 8,
}


def build_decoder(dropout: float = 0.0) -> nn.Module:
    """A decoder with fewer key heads than query heads and an odd vocabulary."""
    shape = {"dropout": dropout, "num_layers": 4, "d_model": 32, "num_heads": 4, "num_kv_heads": 2, "d_ffn": 64}
    section = ModelSection.model_validate({"name": "llama-1m", **shape})
    return build_model(section, vocab_size=VOCAB, seq_len=32, seed=1).double()


def make_batch(seed: int, *, rows: int, seq_len: int) -> dict[str, Tensor]:
    """Rows with very different numbers of labels."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCAB, (rows, seq_len), generator=random)
    labels = torch.randint(VOCAB, (rows, seq_len), generator=random)
    for row in range(rows):
        labels[row, int(torch.randint(3, seq_len, (1,), generator=random)) :] = -100
    return {"input_ids": ids, "labels": labels}


def call(module: nn.Module, batch: Mapping[str, Any]) -> Tensor:
    return call_model(module, batch)


def loss_fn(outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    labels = batch["labels"]
    loss = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
    return loss, (labels != -100).sum()


def check_layout(layout: str, experts: bool = False) -> float:
    """Two steps on two lengths; returns the share of the parameters that this rank holds."""
    build = build_experts if experts else build_decoder
    reference, module, same = build(), build(), SAME_EXPERTS if experts else SAME
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    model = parallelize(module, parsed, example=make_batch(0, rows=2, seq_len=8), call=call, loss_fn=loss_fn)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for step, seq_len in enumerate((16, 24)):
        batch = make_batch(step, rows=ROWS, seq_len=seq_len)
        expected = reference_step(reference, batch)
        line = model.axes["dp"]
        part = {name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}
        loss = model.train_step(part, loss_fn)
        assert abs(float(loss) - expected) <= same * expected
        check_gradients(model, reference, same=same)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.sub_(RATE * parameter.grad)
    for name, whole in model.full_parameters().items():
        assert_same(name, whole, reference.get_parameter(name), same=same)
    return model.local_param_ratio


def reference_step(module: nn.Module, batch: Mapping[str, Tensor]) -> float:
    module.zero_grad()
    loss_sum, count = loss_fn(call(module, batch), batch)
    (loss_sum / count).backward()
    return float(loss_sum.detach() / count)


def check_gradients(model: ParallelModel, reference: nn.Module, *, same: float = SAME) -> None:
    norm = torch.nn.utils.get_total_norm([each.grad for each in reference.parameters()])
    assert abs(float(model.grad_norm()) - float(norm)) <= same * float(norm)
    gradients = model.full_gradients()
    if dist.get_rank() == 0:
        assert set(gradients) == {name for name, _ in reference.named_parameters()}
    for name, gradient in gradients.items():
        assert_same(name, gradient, reference.get_parameter(name).grad, same=same)


def assert_same(name: str, found: Tensor, expected: Tensor, *, same: float) -> None:
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= same, f"{name}: {error}"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_axes_together_equal_one_device(layout: str) -> None:
    ratios = run_on_ranks(check_layout, LAYOUTS[layout], layout=layout, timeout_s=120.0)
    parsed = parse_layout(layout, ranks=LAYOUTS[layout]).layout
    cut = parsed.tp * (parsed.dp_shard * parsed.cp if parsed.zero else 1)
    assert max(ratios) <= 1.1 / cut, "stages hold the embedding, the head or neither"


DROPPING = {"dp=2,micro=2": 2, "tp=2,pp=2,recompute=full": 4, "cp=2,zero3,recompute=full": 4}


def check_dropout(layout: str) -> None:
    """One step of a model that drops, against one device that reads the same rows in other micro-batches."""
    reference, module = build_decoder(dropout=0.25), build_decoder(dropout=0.25)
    batch = make_batch(0, rows=ROWS, seq_len=16)
    set_dropout_clock(reference, step=0)
    expected = reference_step(reference, batch)
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    example = make_batch(0, rows=2, seq_len=8)
    model = parallelize(module, parsed, example=example, call=call, loss_fn=loss_fn, seed=1)
    line = model.axes["dp"]
    loss = model.train_step({name: value.chunk(line.degree)[line.rank] for name, value in batch.items()}, loss_fn)
    assert abs(float(loss) - expected) <= SAME * expected
    check_gradients(model, reference)
    set_dropout_clock(reference, step=1)
    assert abs(reference_step(reference, batch) - expected) > 1e-3, "another step drops others"


@pytest.mark.parametrize("layout", DROPPING)
def test_dropout_drops_the_same_elements_in_any_layout(layout: str) -> None:
    run_on_ranks(check_dropout, DROPPING[layout], layout=layout, timeout_s=120.0)


EXPERTS = {"ep=2,dp=4,zero3": 4, "ep=2,dp=2,pp=2,zero2": 4}


def build_experts() -> nn.Module:
    """Two layers of four experts each, of which a token takes two."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.MixtralConfig(
        vocab_size=VOCAB, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **shape
    )
    module = transformers.MixtralForCausalLM(config)
    module.set_experts_implementation("eager")
    return module.double()


@pytest.mark.parametrize("layout", EXPERTS)
def test_experts_are_dealt_out_and_cut_over_their_copies(layout: str) -> None:
    run_on_ranks(check_layout, EXPERTS[layout], layout=layout, experts=True, timeout_s=120.0)
