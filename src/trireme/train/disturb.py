"""What faults made on purpose do to weights and batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from trireme.data import Batch
from trireme.parallel import local_shard

_NO_TOKEN = 2**30
"""Larger than any vocabulary: what a flipped high bit makes of a token."""


def flip_bit(module: nn.Module) -> None:
    """Flip the lowest bit of the first element that this rank holds of the first parameter, as bad memory does."""
    shard = local_shard(next(iter(module.parameters())))
    with torch.no_grad():
        shard.view(-1)[:1].view(torch.uint8)[0] ^= 1


def garbled(batch: Batch) -> Batch:
    """Return the batch with a token that is none."""
    tokens = np.array(batch.input_ids)
    tokens.flat[0] = _NO_TOKEN
    return replace(batch, input_ids=tokens)
