"""Written on any layout, read on any other: pieces of every kind, without processes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.many_ranks import events, piece_of, save_on_ranks
from trireme.checkpoint import deal_pieces, describe_pieces, full_ranges, open_checkpoint
from trireme.checkpoint.ranges import block_numel, narrow
from trireme.checkpoint.scatter import CHUNK_BYTES
from trireme.errors import CheckpointError


def _spread(size: int, parts: int) -> list[tuple[int, int]]:
    """Cut a dim into nearly equal stretches; later ones may be empty."""
    rows = -(-size // parts)
    return [(min(size, rows * i), max(0, min(rows, size - rows * i))) for i in range(parts)]


@st.composite
def layouts(draw):
    """Degrees (zero, tp, copies), whether a fused matrix has two segments, and whether tp ranks share a stretch."""
    zero, tp = draw(st.integers(1, 4)), draw(st.integers(1, 2))
    copies = draw(st.integers(1, 8 // (zero * tp)))
    return zero, tp, copies, draw(st.booleans()), draw(st.booleans()), draw(st.integers(0, 1))


def _pieces(tensors, layout):
    """Give every rank's pieces: tensors cut over tp, those again over ZeRO, all on so many copies."""
    zero, tp, copies, fused, shared, tp_dim = layout
    ranks = []
    for index in range(zero * tp * copies):
        shard, tp_rank = index // tp % zero, index % tp
        pieces = {}
        for name, whole in tensors.items():
            ranges = list(full_ranges(tuple(whole.shape)))
            if whole.dim() > tp_dim and whole.shape[tp_dim] >= 8:
                ranges[tp_dim] = _tp_ranges(whole.shape[tp_dim], tp, tp_rank, fused=fused, shared=shared)
            if ranges:
                held = sum(length for _, length in ranges[0])
                ranges[0] = narrow(ranges[0], *_spread(held, zero)[shard])
            pieces[name] = piece_of(whole, tuple(ranges))
        pieces["model/tied"] = pieces["model/a"]
        ranks.append(pieces)
    return ranks


def _tp_ranges(size, tp, rank, *, fused, shared):
    segments = [(0, size // 2), (size // 2, size - size // 2)] if fused else [(0, size)]
    cut = []
    for at, (start, length) in enumerate(segments):
        offset, count = _spread(length, tp)[rank]
        # A shared stretch stands for key and value heads that several ranks keep.
        cut.append((start, length) if shared and at else (start + offset, count))
    return tuple(each for each in cut if each[1]) or ((0, 0),)


TENSORS = {
    "model/a": torch.arange(13 * 9, dtype=torch.float32).view(13, 9),
    "model/b": torch.arange(24 * 8 * 3, dtype=torch.bfloat16).view(24, 8, 3),
    "model/c": torch.arange(97, dtype=torch.int64),
    "optimizer/a/step": torch.tensor(7.0),
    "optimizer/empty/x": torch.zeros(0, 4),
}


@settings(max_examples=40, deadline=None)
@given(written=layouts(), read=layouts(), verify=st.booleans())
def test_ckp_05_what_one_layout_wrote_any_other_reads(tmp_path_factory, written, read, verify):
    """Uneven rows, fused segments, stretches that ranks share, tied names, scalars, empty tensors."""
    root = tmp_path_factory.mktemp("root")
    assert events(save_on_ranks(root, _pieces(TENSORS, written))) == ["written", "committed", "done"]
    checkpoint = open_checkpoint(root / "step-1", verify=verify)
    assert checkpoint.first_names()["model/tied"] == "model/a"
    for pieces in _pieces(TENSORS, read):
        for name, piece in pieces.items():
            target = torch.full_like(piece.tensor, 3)
            checkpoint.read_into(name, target, ranges=piece.ranges)
            assert torch.equal(target, piece.tensor), (name, piece.ranges)


def test_every_element_is_written_once_and_the_work_is_dealt_out_evenly():
    """What eight ranks hold alike is written by all of them, in blocks of its own where it is large."""
    large = torch.empty(4096, 8192)  # 128 MiB
    notes = [describe_pieces({"model/w": piece_like(large), "model/b": piece_like(torch.empty(5))}) for _ in range(4)]
    deal = deal_pieces(notes)
    loads = [deal.part_bytes(rank) for rank in range(4)]
    assert sum(loads) == deal.total_bytes == 4 * (4096 * 8192 + 5)
    assert max(loads) - min(loads) <= 32 * 1024 * 1024
    assert sum(block_numel(part.ranges) for parts in deal.parts for part in parts) == 4096 * 8192 + 5


def piece_like(whole):
    from trireme.checkpoint import StatePiece

    return StatePiece(tensor=whole, shape=tuple(whole.shape), ranges=full_ranges(tuple(whole.shape)))


def test_a_part_that_no_rank_holds_is_refused_before_anything_is_written():
    whole = torch.zeros(10, 2)
    notes = [describe_pieces({"model/w": piece_of(whole, (((start, 4),), ((0, 2),)))}) for start in (0, 4)]
    with pytest.raises(CheckpointError, match="16 of its 20"):
        deal_pieces(notes)


def test_ranks_that_describe_a_tensor_differently_are_refused():
    notes = [describe_pieces({"model/w": piece_like(torch.zeros(size))}) for size in (4, 5)]
    with pytest.raises(CheckpointError, match="rank 1"):
        deal_pieces(notes)


@pytest.mark.parametrize("verify", [False, True])
def test_reading_a_part_holds_a_few_megabytes_beside_it(tmp_path, verify, monkeypatch):
    """A column of a matrix of 64 MiB: the target is 64 KiB, what is made beside it at most a chunk."""
    whole = torch.arange(16 * 1024 * 1024, dtype=torch.int32).view(16384, 1024)
    save_on_ranks(tmp_path, [{"model/w": piece_like(whole)}])
    checkpoint = open_checkpoint(tmp_path / "step-1", verify=verify)
    made = []
    original = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda *args, **keys: made.append(math.prod(_shape(args)) * 4) or original(*args, **keys)
    )
    target = torch.zeros(16384, 1, dtype=torch.int32)
    checkpoint.read_into("model/w", target, ranges=(((0, 16384),), ((17, 1),)))
    assert torch.equal(target, whole[:, 17:18])
    assert 0 < sum(made) <= CHUNK_BYTES


def _shape(args):
    return args[0] if isinstance(args[0], (tuple, list, torch.Size)) else args
