"""The wire in whole layouts: what is refused, what compression costs in accuracy, and what a checkpoint keeps."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from trireme.errors import LayoutError
from trireme.parallel import Communication, Piece, assemble, parallelize
from trireme.parallel.communication import check_communication
from trireme.parallel.wires import layered_ratio, split_by_node
from trireme.plan import parse_layout
from trireme.testing.ranks import on_ranks
from trireme.train import Progress, RanksEngine, Stepper, restore_state
from trireme.train.state import state_json, state_tensors

_NEAR = 0.02
"""Codes with error feedback follow the uncompressed run; losses of a few nats may differ by this after a few steps."""

_FEW_NUMBERS_FALL = 0.4
"""Codes of few numbers lag behind in the first dozen steps: this much of the loss's fall must be there."""


class _Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(self.up(self.norm(x)).relu())


class _Model(nn.Module):
    def __init__(self, width=16, layers=2, vocab=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(_Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocab)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def _batch(step, *, dp, rank, rows=8):
    draw = torch.Generator().manual_seed(step % 4)
    start = torch.randint(0, 32, (rows, 1), generator=draw)
    ids = (start + 3 * torch.arange(9)) % 32
    share = rows // dp
    ids = ids[rank * share : (rank + 1) * share]
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def _loss(outputs, batch):
    loss = nn.functional.cross_entropy(outputs.flatten(0, 1).double(), batch["labels"].flatten(), reduction="sum")
    return loss, batch["labels"].numel()


def _stepper(layout, dtype=torch.float32, *, microbatch_seqs=None, lr=1e-2, optimizer=torch.optim.AdamW, **wire):
    torch.manual_seed(0)
    module = _Model().to(dtype)
    example = _batch(0, dp=4, rank=0)
    model = parallelize(
        module,
        layout,
        example=example,
        loss_fn=_loss,
        communication=Communication(bucket_bytes=4000, **wire),
        notice=lambda text: None,
    )
    return Stepper(
        model.module,
        optimizer(model.module.parameters(), lr=lr),
        loss_fn=_loss,
        count_fn=lambda batch: batch["labels"].numel(),
        microbatch_seqs=microbatch_seqs,
        engine=RanksEngine(model),
        clip_grad_norm=None,
    )


def _train(stepper, first, last):
    line = stepper.engine.model.axes["dp"]
    return [stepper(_batch(step, dp=line.degree, rank=line.rank), lr=None).loss for step in range(first, last)]


_LAYOUTS = {
    "dp=4": "bf16 fp16 int8 topk powersgd",
    "hsdp=2x2": "bf16 int8 topk powersgd",
    "dp=4,zero2": "bf16 int8",
    "dp=4,zero1": "topk",
    "tp=2,dp=2": "int8 topk",
    "pp=2,dp=2": "fp16",
}


@on_ranks(4)
def test_codes_follow_the_uncompressed_run_in_every_layout_that_allows_them():
    for layout, methods in _LAYOUTS.items():
        plain = _train(_stepper(layout), 0, 12)
        # Of parameters this small, cut over tp once more, a larger share would be all that isn't zero.
        topk_ratio = 0.01 if "tp" in layout else 0.05
        for method in methods.split():
            stepper = _stepper(layout, compress=method, topk_ratio=topk_ratio, rank=4)
            losses = _train(stepper, 0, 12)
            where = f"{layout} {method}: {losses[0]} {losses[-1]} beside {plain[-1]}"
            if method in ("bf16", "fp16", "int8"):
                assert abs(losses[-1] - plain[-1]) <= _NEAR, where
            else:
                assert losses[0] - losses[-1] >= _FEW_NUMBERS_FALL * (plain[0] - plain[-1]), where
            assert losses != plain, f"{layout} {method} coded nothing"
            everyone = stepper.engine.merge(losses)
            assert all(each == losses for each in everyone), where


@on_ranks(4)
def test_tensor_parallel_ranks_keep_what_they_share_equal_to_the_bit():
    for method in ("int8", "topk", "powersgd", "bf16"):
        stepper = _stepper("tp=2,dp=2", compress=method, topk_ratio=0.1)
        _train(stepper, 0, 4)
        mine = {name: each.detach() for name, each in stepper.module.named_parameters() if "norm" in name}
        for everyone in stepper.engine.merge(mine):
            assert all(torch.equal(everyone[name], each) for name, each in mine.items()), method


@on_ranks(4)
def test_layers_give_the_flat_sum_in_a_whole_layout():
    flat = _train(_stepper("dp=4", torch.float64), 0, 3)
    layered = _train(_stepper("dp=4", torch.float64, layered=True, ranks_per_node=2), 0, 3)
    assert flat == pytest.approx(layered, abs=1e-12)


@on_ranks(4)
def test_summing_once_a_step_or_with_each_micro_batch_is_the_same_and_costs_other_bytes():
    """PAR-18, PAR-19: every stage and every mix of shards and copies has the gradient of one device."""
    truth = _train(_stepper("dp=4", torch.float64, microbatch_seqs=1), 0, 3)
    for layout in ("dp=4,zero2", "dp=4,zero3", "hsdp=2x2"):
        sent = {}
        for reduce in ("step", "microbatch"):
            stepper = _stepper(layout, torch.float64, microbatch_seqs=1, reduce=reduce)
            assert _train(stepper, 0, 3) == pytest.approx(truth, abs=1e-12), (layout, reduce)
            line = stepper.engine.model.axes["dp"]
            traffic = stepper.step(_batch(3, dp=4, rank=line.rank)).traffic
            sent[reduce] = traffic.gradients.moved_bytes["reduce_scatter"]
        assert sent["microbatch"] == 2 * sent["step"], layout


class _Saved:
    """A checkpoint in memory."""

    path = "memory"

    def __init__(self, wholes, state, *, layout):
        self._wholes, self.state = wholes, state
        self.names = tuple(wholes)
        self.manifest = SimpleNamespace(layout=layout)

    def shape(self, name):
        return tuple(self._wholes[name].shape)

    def dtype(self, name):
        return self._wholes[name].dtype

    def first_names(self):
        seen = {}
        return {name: seen.setdefault(id(whole), name) for name, whole in self._wholes.items()}

    def read_into(self, name, tensor, *, ranges):
        piece = Piece(name=name, tensor=tensor, global_shape=self.shape(name), ranges=ranges)
        for place, local in piece.boxes():
            tensor[local].copy_(self._wholes[name][place])


class _Schedule:
    def to_json(self):
        return {}


def _save(stepper, *, step):
    state = state_json(stepper, progress=Progress(step=step), schedule=_Schedule(), data={})
    found = {}
    for pieces in stepper.engine.merge(stepper.engine.state_pieces(state_tensors(stepper))):
        for name, each in pieces.items():
            tensor = each.tensor.detach().clone()
            piece = Piece(name=name, tensor=tensor, global_shape=each.shape, ranges=each.ranges)
            found.setdefault(name, []).append(piece)
    wholes = {name: assemble(pieces) for name, pieces in found.items()}
    return _Saved(wholes, state, layout=str(stepper.engine.model.layout))


_KEPT = [
    ("dp=4", {"compress": "int8"}),
    ("dp=4", {"compress": "powersgd", "warmup_steps": 1}),
    ("dp=4,zero2", {"compress": "topk", "topk_ratio": 0.1}),
    ("hsdp=2x2", {"compress": "bf16"}),
    ("dp=4", {"local_steps": 3}),
    ("hsdp=2x2", {"local_steps": 2, "outer": "average"}),
]


@on_ranks(4)
def test_a_resume_goes_on_to_the_bit_with_what_codes_left_out_and_with_parted_replicas():
    for layout, wire in _KEPT:
        through = _stepper(layout, **wire)
        _train(through, 0, 4)
        saved = _save(through, step=4)
        losses = _train(through, 4, 8)
        again = _stepper(layout, **wire)
        restored = restore_state(saved, stepper=again, progress=Progress())
        assert restored.exact, restored.left
        assert _train(again, 4, 8) == losses, (layout, wire)
        for one, other in zip(through.module.parameters(), again.module.parameters(), strict=True):
            one, other = (each.to_local() if hasattr(each, "to_local") else each for each in (one, other))
            assert torch.equal(one, other), (layout, wire)


@on_ranks(4)
def test_another_layout_leaves_what_was_kept_and_says_so_in_one_line():
    for wire in ({"compress": "int8"}, {"local_steps": 3}):
        saving = _stepper("dp=4", **wire)
        _train(saving, 0, 4)
        saved = _save(saving, step=4)
        other = _stepper("dp=4,zero2")
        restored = restore_state(saved, stepper=other, progress=Progress())
        assert not restored.exact
        assert "dp=4" in restored.left
        assert "\n" not in restored.left
        _train(other, 4, 5)


@on_ranks(4)
def test_replicas_that_meet_after_every_second_step_end_as_one():
    for outer in ("average", "nesterov"):
        stepper = _stepper("dp=4", local_steps=2, outer=outer)
        losses = _train(stepper, 0, 13)
        parted = stepper.engine.merge(stepper.module.head.weight.detach())
        assert not torch.equal(parted[0], parted[1])
        stepper.engine.conclude()
        met = stepper.engine.merge(stepper.module.head.weight.detach())
        assert all(torch.equal(met[0], each) for each in met)
        assert losses[-1] < losses[0] - 1


@on_ranks(2)
def test_meeting_after_each_step_of_gradient_descent_is_data_parallelism():
    """One inner step: the mean of the replicas' weights is the weight of the mean gradient."""
    plain = _stepper("dp=2", torch.float64, optimizer=torch.optim.SGD, lr=0.1)
    parted = _stepper("dp=2", torch.float64, optimizer=torch.optim.SGD, lr=0.1, local_steps=2, outer="average")
    for step in range(3):
        _train(plain, step, step + 1)
        _train(parted, step, step + 1)
        parted.engine.conclude()
    for one, other in zip(plain.module.parameters(), parted.module.parameters(), strict=True):
        assert (one - other).abs().max() <= 1e-12


@pytest.mark.parametrize(
    ("layout", "wire", "word"),
    [
        ("dp=4,zero3", {"compress": "int8"}, "zero3"),
        ("dp=4,zero2", {"compress": "powersgd"}, "whole matrices"),
        ("dp=2,tp=2,zero1", {"compress": "int8"}, "bf16"),
        ("dp=4,ep=2,zero1", {"compress": "bf16"}, "experts"),
        ("dp=4,zero2", {"layered": True}, "hsdp"),
        ("dp=4", {"layered": True, "compress": "powersgd"}, "powersgd"),
        ("tp=4", {"local_steps": 4}, "dp_replicate = 1"),
        ("dp=4", {"local_steps": 4, "compress": "int8"}, "no gradients"),
        ("dp=4", {"reduce": "microbatch"}, "zero2"),
    ],
)
def test_what_a_layout_can_t_give_is_refused_in_one_line(layout, wire, word):
    with pytest.raises(LayoutError) as caught:
        check_communication(Communication(**wire), parse_layout(layout, ranks=4).layout)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nodes_must_be_even_and_more_than_one():
    inside, across = split_by_node([[0, 1, 2, 3, 4, 5, 6, 7]], ranks_per_node=4)
    assert inside == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert across == [[0, 4], [1, 5], [2, 6], [3, 7]]
    for ranks, per_node in ((8, 8), (8, 1), (6, 4)):
        with pytest.raises(LayoutError, match="ranks_per_node"):
            split_by_node([list(range(ranks))], ranks_per_node=per_node)


def test_two_layers_save_the_articles_forty_percent_only_on_two_nodes():
    assert 1 - layered_ratio(8, num_nodes=2) == pytest.approx(0.43, abs=0.005)
    assert 1 - layered_ratio(16, num_nodes=2) == pytest.approx(0.47, abs=0.005)
    assert 1 - layered_ratio(64, num_nodes=8) == pytest.approx(0.11, abs=0.005)
