"""A rank's part of a parameter, as the gradient norm and the optimizer see it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from trireme.parallel.gather import Gatherer


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Stretches of one dim that more ranks hold than the rest of the parameter.

    Attributes:
        dim: Which dim.
        ranges: (start, length) of each stretch, in the numbering of the rank's tensor-parallel share.
        copies: How many ranks of the world hold each of their elements.
    """

    dim: int
    ranges: tuple[tuple[int, int], ...]
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPart:
    """What a rank holds of a parameter.

    Attributes:
        name: Its name in the whole model; further names of a tied parameter are no parts of their own.
        parameter: The tensor whose ``grad`` counts.
        copies: How many ranks of the world hold each element of it, shards of ZeRO told apart: with whole copies
            on all ranks the world size, cut over all of them 1. Owners of a tied parameter on several pipeline
            stages are copies of each other.
        kept: What of it more ranks hold.
        share: How to make a whole of the ranks' shares where tensor or expert parallelism cut it before ZeRO.
    """

    name: str
    parameter: nn.Parameter
    copies: int
    kept: Kept | None = None
    share: Gatherer | None = None


def count_copies(parameter: Tensor, *, holders: int) -> int:
    """Give how many ranks hold each element, from how many would hold it if ZeRO cut nothing."""
    degree = 1
    if isinstance(parameter, DTensor):
        for axis, placement in enumerate(parameter.placements):
            degree *= parameter.device_mesh.size(axis) if isinstance(placement, Shard) else 1
    assert holders % degree == 0, f"{holders} holders, cut into {degree}"
    return holders // degree
