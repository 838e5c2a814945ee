"""A loss that never has all logits, under layouts: loss and every gradient equal one device with plain ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from trireme.config import ModelSection
from trireme.mesh import run_on_ranks
from trireme.models import DeferredLogits, build_model, call_model, deferring, token_cross_entropy
from trireme.parallel import parallelize
from trireme.plan import parse_layout

VOCAB = 61
SAME = 1e-12
"""fp64: what the order of sums explains, relative to the largest element of a tensor."""

LAYOUTS = {"zero3,dp=2": 2, "tp=2,zero2": 4, "tp=2,sp": 2, "cp=2": 2, "pp=2,micro=2": 2, "pp=2,dp=2,zero2,micro=2": 4}


def build(*, tied: bool) -> nn.Module:
    shape = {
        "name": "llama-1m", "num_layers": 2, "d_model": 16, "num_heads": 2, "d_ffn": 32, "tie_embeddings": tied,
    }  # fmt: skip
    return build_model(ModelSection.model_validate(shape), vocab_size=VOCAB, seq_len=32, seed=1).double()


def check(layout: str, tied: bool) -> None:
    seen: list[Any] = []

    def loss_fn(outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        seen.append(outputs)
        return token_cross_entropy(outputs, batch)

    ids = torch.randint(VOCAB, (4, 32), generator=torch.Generator().manual_seed(0))
    labels = ids.roll(-1, 1)
    labels[0, 5:] = -100
    batch = {"input_ids": ids, "labels": labels}
    reference = build(tied=tied)
    loss_sum, count = token_cross_entropy(call_model(reference, batch), batch)
    (loss_sum / count).backward()
    parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
    example = {name: value[:2] for name, value in batch.items()}
    model = parallelize(build(tied=tied), parsed, example=example, call=deferring(call_model), loss_fn=loss_fn)
    line = model.axes["dp"]
    seen.clear()
    loss = model.train_step({k: v.chunk(line.degree)[line.rank] for k, v in batch.items()}, loss_fn)
    kinds = {type(each) for each in seen}
    if model.axes["pp"].rank == model.axes["pp"].degree - 1:
        assert kinds == ({Tensor} if "cp" in layout else {DeferredLogits}), "a cut sequence keeps plain logits"
    else:
        assert not kinds, "only the last stage scores"
    assert all(each.made is None for each in seen if isinstance(each, DeferredLogits))
    assert abs(float(loss) - float(loss_sum.detach() / count)) <= SAME * float(loss)
    for name, found in model.full_gradients().items():
        expected = reference.get_parameter(name).grad
        assert expected is not None
        assert float((found - expected).abs().max()) <= SAME * float(expected.abs().max()), name


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_deferred_loss_equals_one_device_in_every_layout_it_allows(layout: str) -> None:
    # The smallest pipeline meets a matrix that the first stage owns as well.
    run_on_ranks(check, LAYOUTS[layout], layout=layout, tied=layout == "pp=2,micro=2", timeout_s=100.0)
