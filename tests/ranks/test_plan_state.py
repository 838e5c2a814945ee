"""Bytes of parameters, gradients and optimizer state: predicted without torch, and held by ranks that were built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from trireme.cluster import parse_cluster
from trireme.graph import DecoderShape, read_shape
from trireme.models import call_model
from trireme.models.decoder import Decoder
from trireme.parallel import local_shard, parallelize
from trireme.plan import Workload, coordinate, layer_paths, parse_layout, rank_params, state_parts
from trireme.testing.ranks import on_ranks

VOCAB, SEQ_LEN, ROWS = 97, 16, 8
SHAPE = DecoderShape(
    vocab_size=VOCAB, num_layers=4, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=72, max_seq_len=32
)  # fmt: skip
LAYOUTS = (
    "dp=4",
    "tp=4",
    "pp=4",
    "tp=2,pp=2,micro=2",
    "dp=4,zero1",
    "dp=4,zero3",
    "tp=2,dp=2,zero2",
    "pp=2,dp=2,zero1,micro=2",
)


def batch(rows: int) -> dict[str, Tensor]:
    ids = torch.randint(VOCAB, (rows, SEQ_LEN), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def call(module: nn.Module, given: Mapping[str, Any]) -> Tensor:
    return call_model(module, given)


def loss_fn(outputs: Tensor, given: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    labels = given["labels"]
    loss = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss, torch.tensor(labels.numel())


def held_bytes(text: str) -> dict[str, int]:
    """Build this rank, make a step, and add up what it holds."""
    workload = workload_of(text)
    paths = layer_paths(workload)
    cuts = tuple(paths[cut] for cut in workload.cuts)
    torch.manual_seed(0)
    model = parallelize(
        Decoder(SHAPE), workload.layout, example=batch(2), call=call, loss_fn=loss_fn, cuts=cuts, notice=lambda _: None
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model.train_step(batch(ROWS // workload.layout.dp), loss_fn)
    own = list(model.parameters())
    gradients = sum(nbytes(each.grad) for each in own if each.grad is not None)
    optimizer.step()
    moments = sum(nbytes(value) for state in optimizer.state.values() for value in state.values() if value.dim())
    return {"parameters": sum(map(nbytes, own)), "gradients": gradients, "optimizer": moments}


def nbytes(tensor: Tensor) -> int:
    local = local_shard(tensor)
    return local.numel() * local.element_size()


def workload_of(text: str) -> Workload:
    return Workload(
        model=read_shape(SHAPE),
        cluster=parse_cluster("h100:4"),
        layout=parse_layout(text, ranks=4).layout,
        precision="fp32",
        global_batch_seqs=ROWS,
        seq_len=SEQ_LEN,
    )


def check(text: str) -> None:
    workload = workload_of(text)
    held = held_bytes(text)
    place = coordinate(workload.layout, dist.get_rank())
    if place.dp_shard or place.dp_replicate:
        return  # others hold the shorter shards of what doesn't divide
    params = rank_params(workload, dist.get_rank())
    predicted = state_parts(workload, params)
    assert held["parameters"] == predicted.parameters, (text, held, predicted)
    assert held["optimizer"] == predicted.optimizer, (text, held, predicted)
    # After the last micro-batch gradients lie as the optimizer takes them: in shards from stage 1 on.
    shards = 4 * sum(param.shard_numel if workload.layout.zero else param.numel for param in params)
    assert held["gradients"] == shards, (text, held, shards)


@on_ranks(4, timeout_s=240)
def test_state_of_a_built_rank_is_what_the_planner_says_to_the_byte():
    for text in LAYOUTS:
        check(text)
