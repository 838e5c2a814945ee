"""A model's graph from its code alone, held against the graph that its numbers give and against autograd."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.family_models import SEQ_LEN, SEQS, Sizes, Tiny, tiny_model
from trireme.cluster import parse_cluster
from trireme.errors import ModelError
from trireme.graph import (
    Kernels,
    MicroBatch,
    ModelGraph,
    count_model_flops,
    count_model_params,
    estimate_saved_bytes,
    read_config,
)
from trireme.job.graph import graph_of_any, graph_of_module
from trireme.parallel import capture_graph
from trireme.plan import Layout, Workload, estimate_step, hash_model, rank_params

KEPT_TOLERANCE = 0.011
"""Row statistics of norms written out, and counters of a few bytes, aren't in the description of a family."""

AUTOCAST_TOLERANCE = 0.06
"""Autocast looks at each call; a router's weight and a class token's row are cast in other places than by the code."""

BATCH = MicroBatch(seqs=SEQS, seq_len=SEQ_LEN)


def call(module: Any, batch: Mapping[str, Tensor]) -> Any:
    return module(**batch).logits


def captured(name: str, sizes: Sizes) -> tuple[Tiny, ModelGraph]:
    tiny = tiny_model(name, sizes)
    tiny.config._attn_implementation = "eager"
    with torch.device("meta"):
        module = tiny.model_class(tiny.config).train()

    def batch(seqs: int, seq_len: int) -> dict[str, Any]:
        inputs = tiny.inputs()
        ids = torch.zeros((seqs, seq_len), dtype=torch.long)
        sized = {key: ids if isinstance(value, Tensor) else value for key, value in inputs.items()}
        if "pixel_values" in inputs:
            sized = {"pixel_values": inputs["pixel_values"][:1].repeat(seqs, 1, 1, 1)}
        return sized

    return tiny, capture_graph(module, batch, call=call, name=name, family=name, seq_len=SEQ_LEN)


FAMILIES = (
    *("llama", "mistral", "qwen3", "gemma2", "phi", "opt", "bloom", "gpt2", "gpt_neox", "glm4_moe"),
    *("mixtral", "deepseek_v3", "gpt_oss", "llama4_text", "bert", "t5", "vit"),
)
"""One of each kind: norms, attention, positions, experts; the others differ in numbers."""


@pytest.mark.parametrize("name", FAMILIES)
def test_the_graph_of_a_familys_code_equals_the_graph_of_its_numbers(name: str) -> None:
    tiny, graph = captured(name, Sizes())
    known = read_config(tiny.values())
    assert {each.name: each.shape for each in graph.params()} == {each.name: each.shape for each in known.params()}
    ours, theirs = count_model_params(graph), count_model_params(known)
    assert (ours.total, ours.active, ours.layers) == (theirs.total, theirs.active, theirs.layers)
    assert not graph.omitted
    for count in ("unmasked", "full", "causal"):
        known_flops, flops = (count_model_flops(each, BATCH, count=count) for each in (known, graph))  # type: ignore[arg-type]
        assert (flops.products, flops.attention) == (known_flops.products, known_flops.attention)
    assert [stack.layer_paths() for stack in graph.stacks] == [stack.layer_paths() for stack in known.stacks]
    assert [stack.width for stack in graph.stacks] == [stack.width for stack in known.stacks]
    autocast = 0.12 if name == "llama4_text" else AUTOCAST_TOLERANCE  # experts one by one: a cast of each one's input
    for number, stream, tolerance in ((4, 4, KEPT_TOLERANCE), (2, 2, KEPT_TOLERANCE), (2, 4, autocast)):
        kernels = Kernels(attention="eager", dtype_bytes=number, stream_bytes=stream)
        kept = [estimate_saved_bytes(each, BATCH, kernels) for each in (graph, known)]
        assert kept[0] == pytest.approx(kept[1], rel=tolerance), kernels


@pytest.mark.parametrize("name", ["gpt2", "gemma"])
def test_tied_and_odd_sizes_are_counted_to_the_unit(name: str) -> None:
    tiny, graph = captured(name, Sizes(tied=True, layers=3, heads=3, kv_heads=3, head_width=20, width=60, vocab=131))
    known = read_config(tiny.values())
    assert count_model_params(graph).total == count_model_params(known).total
    assert {tie.alias for tie in graph.ties} == {tie.alias for tie in known.ties}


CODE = """
import torch
from torch import nn
import torch.nn.functional as F


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.mixed, self.back = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.mixed(self.norm(x)).chunk(3, -1))
        x = x + self.back(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.table = nn.Embedding(96, width)
        self.body = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.unread = nn.Parameter(torch.zeros(7))

    def forward(self, input_ids):
        return F.linear(self.body(self.table(input_ids)), self.table.weight)


class Asking(Net):
    def forward(self, input_ids):
        x = self.table(input_ids)
        if x.sum() > 0:
            x = self.body(x)
        return F.linear(x, self.table.weight)


def build(width=32, layers=4):
    return Net(width, layers)


def huge():
    return Net(16384, 40)


def asking():
    return Asking(32, 4)
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    file = tmp_path / "my_own_net.py"
    file.write_text(CODE)
    return str(file)


def test_anyones_code_is_planned_at_sizes_that_fit_no_memory(code: str) -> None:
    heard: list[str] = []
    graph = graph_of_any(f"{code}:huge", seq_len=4096, notice=heard.append)
    assert len(heard) == 1
    width = 16384
    layer = 12 * width**2 + 11 * width
    assert count_model_params(graph).total == 40 * layer + 96 * width + 7
    assert len({id(block) for stack in graph.stacks for block in stack.blocks}) == 1
    batch = MicroBatch(seqs=1, seq_len=4096)
    pairs = 4096 * 4097 // 2
    products = 2 * 4096 * (40 * 12 * width**2 + 96 * width)
    assert count_model_flops(graph, batch).forward == products + 40 * 4 * pairs * width
    layout = Layout(pp=8, tp=4, dp_shard=16, zero=1, sp=True, microbatches_per_step=64)
    workload = Workload(
        model=graph, cluster=parse_cluster("h100:8x64"), layout=layout, global_batch_seqs=512, seq_len=4096
    )
    params = sum(prod(param.shape) for param in rank_params(workload, 64))
    # Each of 4 tensor-parallel ranks holds a quarter of every matrix of its 5 layers; norms and some biases are whole.
    assert params == pytest.approx(5 * layer / 4, rel=1e-3)
    assert estimate_step(workload).step_s > 6 * (products + 40 * 4 * pairs * width) / (512 * 989e12)


def test_a_module_that_is_there_has_the_graph_of_its_factory(code: str) -> None:
    from trireme.models import build_from_factory

    module = build_from_factory(f"{code}:build", {}, seed=0)
    before = {name: param.clone() for name, param in module.named_parameters()}
    here = graph_of_module(module, seq_len=16)
    assert hash_model(here) == hash_model(graph_of_any(f"{code}:build", seq_len=16, notice=print))
    assert all(torch.equal(param, before[name]) for name, param in module.named_parameters())


def test_code_that_asks_for_values_is_refused_with_its_line(code: str) -> None:
    with pytest.raises(ModelError, match=r"my_own_net.py:\d+ asks for the values"):
        graph_of_any(f"{code}:asking", seq_len=16, notice=print)


def test_a_config_of_an_unknown_family_falls_to_capture_and_says_so(tmp_path: Path) -> None:
    values = {"model_type": "stablelm", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**values, "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 128}))
    heard: list[str] = []
    graph = graph_of_any(str(file), seq_len=32, notice=heard.append)
    assert graph.num_layers == 3
    assert graph.stacks[0].layer_paths()[0] == "model.layers.0"
    assert "stablelm" in heard[0]
    assert "transformers" in heard[0]
    file.write_text(json.dumps({"model_type": "no_such_family_at_all"}))
    with pytest.raises(ModelError, match="no_such_family_at_all"):
        graph_of_any(str(file), seq_len=32, notice=print)
