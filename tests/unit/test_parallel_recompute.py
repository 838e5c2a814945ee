"""Recomputation: which blocks, exactly what they would have given, and what can't be computed twice."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

import trireme
from tests.unit.train_pieces import TinyLM, make_batch, make_stepper
from trireme.errors import LayoutError
from trireme.parallel import RecomputeRule

BLOCKS = tuple(f"layers.{number}" for number in range(6))


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [
        (RecomputeRule(kind="full"), range(6)),
        (RecomputeRule(kind="full", every=2), (0, 2, 4)),
        (RecomputeRule(kind="selective", layers=("layers.1", "*.[45]")), (1, 4, 5)),
        (RecomputeRule(kind="selective", every=4, layers=("layers.*",)), (0, 4)),
    ],
)
def test_a_rule_names_blocks_by_number_and_path(rule, chosen):
    kinds = rule.kinds(BLOCKS)
    assert [path for path, kind in kinds.items() if kind == rule.kind] == [BLOCKS[number] for number in chosen]


def test_a_layer_that_is_not_there_is_named():
    with pytest.raises(LayoutError, match=r"layers\.9"):
        RecomputeRule(kind="full", layers=("layers.9",)).kinds(BLOCKS)


class Saved:
    """Counts bytes that autograd keeps."""

    def __init__(self) -> None:
        self.kept = 0

    def __enter__(self):
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error):
        self._hooks.__exit__(*error)

    def _pack(self, tensor):
        self.kept += tensor.numel() * tensor.element_size()
        return tensor


@pytest.mark.parametrize("kind", ["selective", "full"])
def test_marked_modules_give_the_same_bits_and_keep_less(kind):
    """With dropout: what is drawn again must be what was drawn."""
    losses, grads, kept = [], [], []
    for is_marked in (False, True):
        module = TinyLM(dropout=0.2, width=32)
        if is_marked:
            trireme.recompute(module.blocks, kind)
            module = copy.deepcopy(module)  # a mark goes with copies
        stepper = make_stepper(module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1))
        torch.manual_seed(5)
        with Saved() as saved:
            losses.append([stepper(make_batch(step)).loss for step in range(3)])
        grads.append([each.detach().clone() for each in module.parameters()])
        kept.append(saved.kept)
    assert losses[0] == losses[1]
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))
    assert kept[1] < (0.5 if kind == "full" else 0.8) * kept[0]


def test_rec_05_a_weight_shared_by_recomputed_blocks_under_autocast():
    grads = []
    for is_marked in (False, True):
        module = TinyLM()
        module.blocks[1].up.weight = module.blocks[0].up.weight
        if is_marked:
            trireme.recompute(module.blocks)
        stepper = make_stepper(
            module, precision="bf16", microbatch_seqs=4, optimizer=torch.optim.SGD(module.parameters(), lr=1.0)
        )
        stepper(make_batch(0))
        grads.append([each.detach().clone() for each in module.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*grads, strict=True))


def test_rec_03_without_gradients_a_marked_block_runs_once_and_keeps_nothing():
    module = trireme.recompute(TinyLM().blocks[0]) and TinyLM()
    trireme.recompute(module.blocks)
    calls = []
    for block in module.blocks:
        block.register_forward_hook(lambda *_: calls.append(1))
    stepper = make_stepper(module)
    with torch.no_grad(), Saved() as saved:
        stepper.module(torch.zeros(2, 12, dtype=torch.int64))
    assert (len(calls), saved.kept) == (2, 0)


class Counting(nn.Module):
    """A block with something on the side."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.kind, self.calls, self.cache = kind, 0, {}
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        if self.kind == "buffer":
            self.mean.mul_(0.9).add_(x.detach().mean((0, 1)))
        elif self.kind == "counter":
            self.calls += 1
        elif self.kind == "print":
            print("mean is", float(x.detach().mean()))  # noqa: T201
        elif self.kind == "random":
            x = x * (0.5 + random.random())
        elif self.kind == "cache":
            self.cache.setdefault(x.shape, torch.ones(x.shape[-1]))
        elif self.kind == "stash":
            self.last = x
        return x + self.linear(x)


@pytest.mark.parametrize(
    ("kind", "said"), [("buffer", "mean"), ("counter", "calls"), ("print", "prints"), ("random", "random numbers")]
)
def test_a_block_that_does_more_than_compute_is_refused_by_name(kind, said):
    module = TinyLM()
    module.blocks[1] = trireme.recompute(Counting(kind))
    stepper = make_stepper(module)
    with pytest.raises(LayoutError, match=rf"blocks\.1.*{said}"):
        _ = [stepper(make_batch(step)) for step in range(2)]


@pytest.mark.parametrize("kind", ["cache", "stash", "none"])
def test_a_cache_that_fills_once_and_results_handed_on_are_no_harm(kind):
    module = TinyLM()
    module.blocks[1] = trireme.recompute(Counting(kind))
    stepper = make_stepper(module)
    for step in range(3):
        stepper(make_batch(step))


def test_paddles_word_marks_a_layer():
    from trireme.fleet.recompute import teach_modules
    from trireme.parallel import marked_modules

    teach_modules()
    module = TinyLM()
    module.blocks[1]._set_recompute(True)
    assert marked_modules(module) == {"blocks.1": "full"}
