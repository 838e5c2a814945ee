"""What one rank holds of a tensor of the state, and the copy of a part of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trireme.checkpoint.ranges import block_shape, common_boxes, full_ranges
from trireme.checkpoint.record import Ranges
from trireme.checkpoint.stored_type import STORED_TYPES
from trireme.errors import CheckpointError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePiece:
    """One rank's part of a tensor.

    Attributes:
        tensor: The live values, on any device.
        shape: Of the whole tensor.
        ranges: Where ``tensor`` lies in the whole.
        frozen: Whether nothing trains it: it is stored apart, and once as long as it stays what it is.
    """

    tensor: torch.Tensor
    shape: tuple[int, ...]
    ranges: Ranges
    frozen: bool = False

    @property
    def dtype(self) -> str:
        """Return torch's name of the format."""
        return str(self.tensor.dtype).removeprefix("torch.")


def whole_pieces(tensors: Mapping[str, torch.Tensor]) -> dict[str, StatePiece]:
    """Return tensors that this rank has whole as pieces."""
    return {
        name: StatePiece(tensor=tensor, shape=tuple(tensor.shape), ranges=full_ranges(tuple(tensor.shape)))
        for name, tensor in tensors.items()
    }


def check_tensors(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise unless every tensor can be saved exactly.

    Raises:
        CheckpointError: One is of a kind, a format or a name that can't.
    """
    import torch

    for name, tensor in tensors.items():
        if not name or name == "__metadata__":
            raise CheckpointError("checkpoint.tensor_name", name=name)
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
            raise CheckpointError("checkpoint.tensor_kind", name=name, kind=type(tensor).__name__)
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in STORED_TYPES:
            raise CheckpointError("checkpoint.tensor_dtype", name=name, dtype=dtype)
        if tensor.is_meta:
            raise CheckpointError("checkpoint.tensor_meta", name=name)


def copy_block(piece: StatePiece, ranges: Ranges, into: torch.Tensor) -> None:
    """Copy the part of a piece that ``ranges`` names into flat bytes; from a device the copy may still be under way."""
    values = piece.tensor.detach()
    target = into.view(values.dtype).view(block_shape(ranges))
    if ranges == piece.ranges:
        target.copy_(values, non_blocking=True)
        return
    for place, inside in common_boxes(piece.ranges, ranges):
        target[inside].copy_(values[place], non_blocking=True)
