"""A batch as tensors, cut into micro-batches, with what is counted of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from trireme.data import Batch, share_of_rank
from trireme.errors import TrainError
from trireme.train.objective import IGNORED_LABEL, Objective, num_rows

_ARRAYS = ("input_ids", "labels", "position_ids", "document_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Tokens of a batch: all places, those that aren't padding, those with a label."""

    step_tokens: int
    real_tokens: int
    target_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Micro:
    """One micro-batch on the host and what its loss is summed over."""

    tensors: Mapping[str, Any]
    count: int
    first_row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One step's part of this rank, ready to run; ``tensors`` is all of it."""

    tensors: Mapping[str, Any]
    micros: tuple[Micro, ...]
    tokens: TokenCounts
    num_seqs: int
    sample_ids: tuple[int, ...]

    @property
    def count(self) -> int:
        """What the losses of all micro-batches are summed over."""
        return sum(micro.count for micro in self.micros)


def split_batch(
    batch: Batch | Mapping[str, Any], *, objective: Objective, microbatch_seqs: int | None, parts: int | None = None
) -> Work:
    """Return the batch in micro-batches of at most ``microbatch_seqs`` samples, counted.

    ``parts`` is how many there should be where ``microbatch_seqs`` doesn't say.

    Raises:
        TrainError: Tensors disagree on the number of samples.
    """
    tensors = host_tensors(batch)
    sample_ids = _sample_ids(batch)
    rows = num_rows(tensors)
    _check_rows(tensors, rows=rows)
    size = microbatch_seqs or max(1, -(-rows // (parts or 1)))
    micros = tuple(
        _micro(tensors, first=first, last=min(first + size, rows), objective=objective)
        for first in range(0, rows, size)
    )
    return Work(tensors=tensors, micros=micros, tokens=count_tokens(tensors), num_seqs=rows, sample_ids=sample_ids)


def fill_up(work: Work, *, count: int) -> Work:
    """Return the work with micro-batches of nothing at its end, for another rank has ``count`` of them."""
    if len(work.micros) >= count:
        return work
    nothing = Micro(tensors=_one_row_of_nothing(work.tensors), count=0)
    return replace(work, micros=(*work.micros, *[nothing] * (count - len(work.micros))))


def _one_row_of_nothing(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return one sample of the batch's kind without a label; its loss is counted as zero."""
    return {
        name: _without_label(name, value[:1] if len(value) else value.new_zeros(1, *value.shape[1:]))
        if isinstance(value, torch.Tensor) and value.dim() > 0
        else value
        for name, value in tensors.items()
    }


def _without_label(name: str, row: torch.Tensor) -> torch.Tensor:
    is_label = name == "labels" and not row.is_floating_point() and row.dim() >= 2
    return torch.full_like(row, IGNORED_LABEL) if is_label else row


def _micro(tensors: Mapping[str, Any], *, first: int, last: int, objective: Objective) -> Micro:
    part = {
        name: value[first:last] if isinstance(value, torch.Tensor) and value.dim() > 0 else value
        for name, value in tensors.items()
    }
    return Micro(tensors=part, count=objective.count(part), first_row=first)


def host_tensors(batch: Batch | Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch's arrays as tensors; whole numbers become int64, what indexing and losses want."""
    if isinstance(batch, Batch):
        return {name: torch.from_numpy(getattr(batch, name)).long() for name in _ARRAYS}
    return {name: _tensor(value) for name, value in batch.items() if name != "sample_ids"}


def _tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
        return value.long() if value.dtype in (torch.int32, torch.int16, torch.int8) else value
    return value


def take_rows(batch: Batch, num_seqs: int) -> Batch:
    """Return the first ``num_seqs`` samples of a batch, recounted; the batch itself if that is all."""
    return batch if num_seqs >= len(batch.sample_ids) else _rows(batch, slice(0, num_seqs))


def share_rows(batch: Batch, *, rank: int, degree: int) -> Batch:
    """Return one data-parallel rank's samples of a whole batch, recounted."""
    return _rows(batch, share_of_rank(len(batch.sample_ids), dp_rank=rank, dp_degree=degree))


def _rows(batch: Batch, rows: slice) -> Batch:
    arrays = {name: getattr(batch, name)[rows] for name in _ARRAYS}
    return replace(
        batch,
        sample_ids=batch.sample_ids[rows],
        num_real_tokens=int((arrays["document_ids"] >= 0).sum()),
        num_target_tokens=int((arrays["labels"] != IGNORED_LABEL).sum()),
        **arrays,
    )


def move(tensors: Mapping[str, Any], *, device: torch.device) -> dict[str, Any]:
    """Return the mapping with its tensors on ``device``."""
    return {
        name: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for name, value in tensors.items()
    }


def count_tokens(tensors: Mapping[str, Any]) -> TokenCounts:
    """Return the token counts that reports show; a batch without ``input_ids`` counts its samples."""
    ids, labels = tensors.get("input_ids"), tensors.get("labels")
    places = int(ids.numel()) if isinstance(ids, torch.Tensor) else num_rows(tensors)
    real = places
    if isinstance(document_ids := tensors.get("document_ids"), torch.Tensor):
        real = int((document_ids >= 0).sum())
    elif isinstance(mask := tensors.get("attention_mask"), torch.Tensor):
        real = int((mask != 0).sum())
    target = real
    if isinstance(labels, torch.Tensor) and not labels.is_floating_point():
        target = int((labels != IGNORED_LABEL).sum())
    return TokenCounts(step_tokens=places, real_tokens=real, target_tokens=target)


def _check_rows(tensors: Mapping[str, Any], *, rows: int) -> None:
    lengths = {
        name: value.shape[0] for name, value in tensors.items() if isinstance(value, torch.Tensor) and value.dim()
    }
    if any(length != rows for length in lengths.values()):
        raise TrainError("train.uneven_rows", lengths=", ".join(f"{name}: {n}" for name, n in lengths.items()))


def _sample_ids(batch: Batch | Mapping[str, Any]) -> tuple[int, ...]:
    ids = batch.sample_ids if isinstance(batch, Batch) else batch.get("sample_ids")
    return () if ids is None else tuple(int(i) for i in ids)
