"""Positions cut between the matrices of tensor parallelism: equal to one device, with no more than Megatron's traffic."""

import functools
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from trireme.interpret import plan_tensor_parallel
from trireme.testing.ranks import on_ranks

sys.path.insert(0, str(Path(__file__).parent))
import context_check
import interpret_models
from interpret_models import HEADS, VOCAB, WIDTH

_NUM_LAYERS = 2
_TOKENS = 12


def _tokens(num_tokens):
    generator = torch.Generator().manual_seed(3)
    ids, labels = (torch.randint(VOCAB, (2, num_tokens), generator=generator) for _ in range(2))
    labels[0, :3] = -100
    return ids, labels


def _loss(labels, outputs):
    logits = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)


def _inputs(name, ids, labels):
    if name == "t5":
        return {"input_ids": ids[:, :-2], "labels": labels, "use_cache": False}
    inputs = {"input_ids_BT" if name.startswith("decoder") else "input_ids": ids}
    return inputs | ({"use_cache": False} if name in interpret_models.FAMILIES and name != "bert" else {})


def _check(name, *, grid=None, num_tokens=_TOKENS, silent=True, model=None, **options):
    ids, labels = _tokens(num_tokens)
    worst, told, _, count = context_check.train(
        interpret_models.build(name) if model is None else model,
        _inputs(name, ids, labels),
        functools.partial(_loss, labels),
        grid=grid or context_check.Grid(dist.get_world_size()),
        sequence_parallel=True,
        **options,
    )
    assert worst[1] < context_check.ERROR, (name, worst)
    assert not silent or not told, told
    return count


@on_ranks(2, 4, timeout_s=180)
def test_hand_written_models_equal_one_device():
    for name in ("gpt", "decoder_2", "library_attention", "library_layer", "fused_groups", "decoder_1"):
        count = _check(name, num_tokens=13)
        assert count.calls["reduce_scatter forward"] > 0


@on_ranks(2, timeout_s=240)
def test_families_of_transformers_equal_one_device():
    for name in ("llama", "qwen3", "gpt2", "bert", "falcon", "t5"):
        count = _check(name)
        assert count.calls["reduce_scatter forward"] > 0, name
    _check("mixtral", silent=False)


@on_ranks(4, timeout_s=240)
def test_positions_are_cut_on_two_axes_at_once():
    grid = context_check.Grid(2)
    for name in ("gpt", "decoder_2", "llama", "gpt2"):
        count = _check(name, grid=grid, num_tokens=16, silent=False)
        assert count.calls["reduce_scatter forward"] > 0, name


class _PositionsFirst(nn.Module):
    """``[T, B, D]`` inside."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 64, dropout=0.0, batch_first=False, norm_first=place % 2 == 0)
            for place in range(2)
        )

    def forward(self, input_ids):
        x = self.embed(input_ids.t())
        for layer in self.layers:
            x = layer(x)
        return self.head(x).transpose(0, 1)


@on_ranks(2)
def test_positions_may_come_first():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = _PositionsFirst().double()
    count = _check("first", model=model)
    assert count.calls["reduce_scatter forward"] == context_check.STEPS * (2 * _NUM_LAYERS + 1)


_KINDS = ("reduce_scatter forward", "all_gather forward", "reduce_scatter backward", "all_gather backward")


@on_ranks(2, 4, timeout_s=120)
def test_no_more_traffic_than_megatrons():
    """Twice a layer and once each at embedding and head, of activations; sums of gradients are of vectors only."""
    for name in ("decoder_4", "library_attention"):
        count = _check(name)
        activation_bytes = 2 * _TOKENS * WIDTH * 8
        exchanges = context_check.STEPS * (2 * _NUM_LAYERS + 1)
        for kind in _KINDS:
            assert count.calls[kind] <= exchanges, (name, kind)
            assert count.num_bytes[kind] <= exchanges * activation_bytes, (name, kind)
        vectors = [p for p in interpret_models.build(name).parameters() if p.ndim == 1]
        vector_bytes = context_check.STEPS * sum(p.numel() for p in vectors) * 8
        assert count.num_bytes["all_reduce backward"] <= vector_bytes, name


@pytest.mark.parametrize("name", ["gpt", "decoder_2", "library_layer", "gpt2"])
def test_a_plan_names_every_matrix_whose_sums_are_cut(name):
    ids, labels = _tokens(_TOKENS)
    plan = plan_tensor_parallel(
        interpret_models.build(name),
        _inputs(name, ids[:1], labels[:1]),
        degree=2,
        loss_fn=functools.partial(_loss, labels[:1]),
        sequence_parallel=True,
    )
    assert plan.tokens_stopped is None
    own = {place for place in plan.tokens if place not in plan.ties}
    assert len(own) == 2 * _NUM_LAYERS + 1
