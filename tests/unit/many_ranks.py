"""Ranks of a layout in one process: their pieces of a state, saved together as their processes would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trireme.checkpoint import (
    LeadOrder,
    Ranges,
    RankSaver,
    StatePiece,
    WriteOrder,
    begin_save,
    blank_manifest,
    deal_pieces,
    describe_pieces,
)
from trireme.checkpoint.writer_link import Answer


def piece_of(whole: torch.Tensor, ranges: Ranges, *, frozen: bool = False) -> StatePiece:
    """Cut a piece out of a tensor."""
    values = whole
    for dim, stretches in enumerate(ranges):
        index = [place for start, length in stretches for place in range(start, start + length)]
        values = values.index_select(dim, torch.tensor(index, dtype=torch.int64))
    return StatePiece(tensor=values.clone(), shape=tuple(whole.shape), ranges=ranges, frozen=frozen)


def save_on_ranks(
    root: Path,
    pieces: Sequence[Mapping[str, StatePiece]],
    *,
    step: int = 1,
    savers: Sequence[RankSaver] = (),
    **lead: Any,
) -> list[Answer]:
    """Save the pieces of all ranks, the leading one last; return what was answered to it."""
    savers = savers or [RankSaver(background=False) for _ in pieces]
    deal = deal_pieces([describe_pieces(each) for each in pieces])
    blank = blank_manifest(step=step, state={"step": step}, metrics={}, run_id="run", layout="test", finite=True)
    save_id, folder = begin_save(root, step=step, value_bytes=deal.total_bytes, num_tensors=len(deal.tensors))
    answers: list[Answer] = []
    for rank in reversed(range(len(pieces))):
        leads = LeadOrder(num_ranks=len(pieces), tensors=deal.tensors, manifest=blank, **lead)
        order = WriteOrder(
            number=step,
            rank=rank,
            folder=folder,
            save_id=save_id,
            run_id="run",
            parts=(),
            backoff_s=0.01,
            lead=None if rank else leads,
        )
        assert savers[rank].take(pieces[rank], deal.parts[rank], order=order) is None
        answers = hear_all(savers[rank]) if savers[rank].busy or rank == 0 else []
    return answers


def hear_all(saver: RankSaver, *, limit: int = 400) -> list[Answer]:
    """Wait until a rank's order came to its end."""
    answers = saver.hear()
    for _ in range(limit):
        if not saver.busy:
            break
        answers += saver.hear(wait_s=0.05)
    assert not saver.busy, "the order came to no end"
    return answers


def events(answers: Sequence[Answer]) -> list[str]:
    """Return the kinds of answers."""
    return [answer.event for answer in answers]
