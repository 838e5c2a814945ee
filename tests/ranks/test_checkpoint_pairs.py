"""Saved by real ranks of one layout, restored by those of another: values, ties, moments and scalars."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trireme.checkpoint import (
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    LeadOrder,
    RankSaver,
    WriteOrder,
    begin_save,
    blank_manifest,
    deal_pieces,
    describe_pieces,
    open_checkpoint,
)
from trireme.config import ModelSection
from trireme.errors import CheckpointError
from trireme.mesh import RankError, run_on_ranks
from trireme.models import build_model, call_model
from trireme.parallel import parallelize
from trireme.plan import parse_layout
from trireme.train import OneDevice, RanksEngine

VOCAB = 97
LAYOUTS = {"dp=1": 1, "zero3,dp=3": 3, "tp=2": 2, "pp=2": 2, "tp=4,zero3": 4, "tp=2,pp=2,zero1": 4}
"""With two key heads, four tensor-parallel ranks hold each of them twice."""


def build(*, tied: bool, seed: int) -> nn.Module:
    shape = {
        "num_layers": 2,
        "d_model": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "d_ffn": 64,
        "tie_embeddings": tied,
        "vocab_size": VOCAB,
    }
    return build_model(
        ModelSection.model_validate({"name": "llama-1m", **shape}), vocab_size=VOCAB, seq_len=16, seed=seed
    )


def spread(layout: str, *, tied: bool, seed: int):
    """Return (engine, state tensors) of this rank: weights, and moments that are made from them."""
    module = build(tied=tied, seed=seed)
    engine: OneDevice | RanksEngine = OneDevice()
    if dist.get_world_size() > 1:
        ids = torch.zeros(4, 16, dtype=torch.int64)
        parsed = parse_layout(layout, ranks=dist.get_world_size()).layout
        model = parallelize(module, parsed, example={"input_ids": ids}, call=call_model, notice=lambda text: None)
        engine, module = RanksEngine(model), model.module
    tensors = {f"{MODEL_PREFIX}{name}": value for name, value in module.state_dict(keep_vars=True).items()}
    for name, parameter in module.named_parameters():
        tensors[f"{OPTIMIZER_PREFIX}{name}/exp_avg"] = parameter.detach().clone().mul_(2)
        tensors[f"{OPTIMIZER_PREFIX}{name}/step"] = torch.tensor(float(seed))
    return engine, module, tensors


def save(layout: str, root: Path, tied: bool) -> None:
    engine, _, tensors = spread(layout, tied=tied, seed=3)
    pieces = engine.state_pieces(tensors)
    deal = deal_pieces(everyone(describe_pieces(pieces)))
    opened = [None]
    if engine.rank == 0:
        opened = [begin_save(root, step=1, value_bytes=deal.total_bytes, num_tensors=len(deal.tensors))]
    dist.broadcast_object_list(opened)
    save_id, folder = opened[0]
    blank = blank_manifest(step=1, state={}, metrics={}, run_id="", layout=layout, finite=True)
    lead = (
        LeadOrder(num_ranks=dist.get_world_size(), tensors=deal.tensors, manifest=blank) if engine.rank == 0 else None
    )
    order = WriteOrder(number=1, rank=engine.rank, folder=folder, save_id=save_id, run_id="", parts=(), lead=lead)
    saver = RankSaver(background=False)
    saver.take(pieces, deal.parts[engine.rank], order=order)
    assert engine.rank or [each.event for each in saver.hear()] == ["written", "committed", "done"]


def everyone(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def restore(layout: str, roots: dict[str, Path], tied: bool) -> None:
    engine, module, tensors = spread(layout, tied=tied, seed=4)
    before = {name: piece.tensor for name, piece in engine.state_pieces(spread(layout, tied=tied, seed=3)[2]).items()}
    for written, root in roots.items():
        with torch.no_grad():
            for tensor in tensors.values():
                tensor.fill_(-7)
        engine.restore_state(module, open_checkpoint(root / "step-1"), tensors)
        for name, piece in engine.state_pieces(tensors).items():
            assert torch.equal(piece.tensor, before[name]), (written, layout, name)


@pytest.mark.parametrize("tied", [True, False])
def test_ckp_26_every_layout_restores_what_every_layout_saved(tmp_path: Path, tied: bool) -> None:
    """CKP-05, CKP-25, CKP-26: an odd vocabulary, tied or not, shared key heads; no name missing, none left over."""
    layouts = LAYOUTS if tied else {name: LAYOUTS[name] for name in ("dp=1", "pp=2", "tp=4,zero3")}
    roots = {}
    for index, (layout, ranks) in enumerate(layouts.items()):
        roots[layout] = tmp_path / str(index)
        run_on_ranks(save, ranks, layout=layout, root=roots[layout], tied=tied, timeout_s=120)
    first = open_checkpoint(roots["dp=1"] / "step-1")
    for root in roots.values():
        found = open_checkpoint(root / "step-1")
        assert set(found.names) == set(first.names)
        assert found.first_names().keys() == first.first_names().keys()
        assert found.shape("model/embed_tokens.weight") == (VOCAB, 32)
        assert all(torch.equal(found.tensor(name), first.tensor(name)) for name in first.names)
    for layout, ranks in layouts.items():
        run_on_ranks(restore, ranks, layout=layout, roots=roots, tied=tied, timeout_s=120)


def test_what_is_tied_on_one_side_only_is_refused_by_name(tmp_path: Path) -> None:
    run_on_ranks(save, 2, layout="tp=2", root=tmp_path / "untied", tied=False)
    with pytest.raises(RankError, match=r"lm_head\.weight"):
        run_on_ranks(restore, 2, layout="pp=2", roots={"tp=2": tmp_path / "untied"}, tied=True)
    assert issubclass(CheckpointError, Exception)
