"""Fewer bytes for a gradient: 16 bits, 8 bits with a scale a block, or a block's largest elements alone.

Every code works on blocks of neighbouring elements, each on its own: what a block becomes never depends on what lies
beside it, so ranks that hold the same parameter get the same gradient whatever else their buckets hold. A block with
a NaN or Inf stays one, for the step has to be skipped.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Codec(Protocol):
    """Turns blocks ``[N, block]`` into rows of bytes ``[N, M]`` and back, in the format they are asked for.

    ``block`` elements have one code.
    """

    block: int

    def encode(self, blocks: Tensor) -> Tensor:
        """Give the bytes."""
        ...

    def decode(self, rows: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Give what the bytes stand for."""
        ...


class Bf16:
    """Upper half of fp32: 8 bits of exponent, 8 of significance."""

    block = 64

    def encode(self, blocks: Tensor) -> Tensor:
        """Round to nearest."""
        return blocks.bfloat16().view(torch.uint8)

    def decode(self, rows: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Widen."""
        return rows.view(torch.bfloat16).to(dtype)


class Fp16:
    """Half precision with a power of two a block, so that neither large nor tiny gradients leave its range."""

    block = 256

    def encode(self, blocks: Tensor) -> Tensor:
        """Scale the block's largest below 2, round."""
        scale = _power_above(blocks)
        return _joined(scale, (blocks.float() / scale).half())

    def decode(self, rows: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Scale back."""
        scale, values = _parted(rows, torch.float16)
        return (values.float() * scale).to(dtype)


class Int8:
    """Whole numbers from -127 to 127 times a scale a block.

    **Source**: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", 2021, section 2.1 (linear here).
    """

    block = 256

    def encode(self, blocks: Tensor) -> Tensor:
        """Divide by a 127th of the block's largest, round to nearest even."""
        values = blocks.float()
        largest = values.abs().amax(1, keepdim=True)
        scale = torch.where(largest == 0, torch.ones_like(largest), largest / 127)
        return _joined(scale, (values / scale).round().clamp(-127, 127).nan_to_num(0.0).to(torch.int8))

    def decode(self, rows: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Multiply."""
        scale, values = _parted(rows, torch.int8)
        return torch.where(torch.isfinite(scale), values.float() * scale, torch.full_like(scale, torch.nan)).to(dtype)


class TopK:
    """The largest elements of each block with their places; the others wait in the error feedback.

    **Source**: Stich et al., "Sparsified SGD with Memory", 2018; by block instead of over the whole gradient.
    """

    block = 1024

    def __init__(self, ratio: float) -> None:
        self.count = max(1, round(ratio * self.block))

    def encode(self, blocks: Tensor) -> Tensor:
        """Choose by magnitude; a NaN counts as largest."""
        places = blocks.abs().topk(self.count, dim=1, sorted=True).indices.sort(dim=1).values
        values = blocks.gather(1, places).float()
        return torch.cat([values.view(torch.uint8), places.to(torch.int16).view(torch.uint8)], dim=1)

    def decode(self, rows: Tensor, *, dtype: torch.dtype) -> Tensor:
        """Put zeros around."""
        values = _apart(rows[:, : 4 * self.count]).view(torch.float32)
        places = _apart(rows[:, 4 * self.count :]).view(torch.int16).long()
        blocks = torch.zeros(rows.shape[0], self.block, dtype=dtype, device=rows.device)
        return blocks.scatter_(1, places, values.to(dtype))


def _power_above(blocks: Tensor) -> Tensor:
    """Give each block's least power of two above half its largest; NaN where the block isn't finite."""
    largest = blocks.float().abs().amax(1, keepdim=True)
    power = torch.exp2(torch.frexp(largest).exponent.float() - 1).clamp_min(torch.finfo(torch.float32).tiny)
    return torch.where(torch.isfinite(largest), power, torch.full_like(power, torch.nan))


def _joined(scale: Tensor, values: Tensor) -> Tensor:
    return torch.cat([scale.contiguous().view(torch.uint8), values.contiguous().view(torch.uint8)], dim=1)


def _parted(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _apart(rows[:, :4]).view(torch.float32), _apart(rows[:, 4:]).view(dtype)


def _apart(rows: Tensor) -> Tensor:
    """Copy columns to read them as another format: a single row counts as contiguous whatever its stride."""
    return rows.clone(memory_format=torch.contiguous_format)
