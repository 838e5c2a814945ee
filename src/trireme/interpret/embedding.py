"""Lookup in a table whose rows (vocabulary) or columns are cut."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trireme.interpret.call import Call
from trireme.interpret.split import Shard
from trireme.interpret.tensor_state import is_input, origin_of, shard_of, sources_of, with_shard


def embedding(call: Call) -> Any:
    """``F.embedding(ids, weight)``; a table that reads the model's own inputs is cut by vocabulary."""
    ids, weight = call.get(0, "input"), call.get(1, "weight")
    if shard_of(ids) is not None or call.get(3, "max_norm") is not None:
        if sources_of(ids, weight):
            raise call.refuse(ids, weight)
        return NotImplemented
    if shard_of(weight) is None:
        weight = _decided(call, ids, weight)
        if weight is None:
            return NotImplemented
    shard = shard_of(weight)
    assert shard is not None
    if shard.dim == 1:
        columns = F.embedding(ids, weight)
        return with_shard(columns, Shard(dim=columns.ndim - 1, split=shard.split, sources=shard.sources))
    return call.interpreter.sum_rows(_own_rows(call, ids, weight, shard), weight)


def _decided(call: Call, ids: Tensor, weight: Tensor) -> Tensor | None:
    """Cut a table by rows: of tokens, or of what is added to them, positions and kinds, whose sum is made together."""
    decider = call.interpreter.decider
    if decider is None or origin_of(weight) is None:
        return None
    return decider.column(weight, 0) if is_input(ids) or decider.has_table(weight.shape[1]) else None


def _own_rows(call: Call, ids: Tensor, weight: Tensor, shard: Shard) -> Tensor:
    """Look up the rows that this rank holds, zero elsewhere."""
    if len(shard.split.parts) != 1 or shard.split.keeps_some:
        raise call.refuse(weight)
    ((start, length),) = shard.split.ranges(call.interpreter.line.rank)
    local = ids - start
    mine = (local >= 0) & (local < length)
    padding = call.get(2, "padding_idx")
    if padding is not None:
        padding %= shard.split.total
        padding = padding - start if start <= padding < start + length else None
    rows = F.embedding(torch.where(mine, local, 0), weight, padding)
    return torch.where(mine.unsqueeze(-1), rows, torch.zeros((), dtype=rows.dtype, device=rows.device))
