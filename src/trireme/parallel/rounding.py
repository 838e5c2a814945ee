"""Stochastic rounding of new weights to bf16: an update smaller than the format's spacing survives on average."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from trireme.interpret import stream_key, uniform_bits
from trireme.parallel.fsdp_private import local_shard
from trireme.parallel.piece import Piece, Range, whole_piece

PiecesFn = Callable[[], Mapping[str, Piece]]
"""Gives what this rank holds of each parameter, by name."""

_LOW_BITS = 16
"""Bits of an fp32 number that bf16 drops."""


class StochasticRounding:
    """Rounds up with a probability equal to the part that is cut off.

    What is drawn follows from seed, step, the parameter's name and the element's number in the whole tensor, so every
    layout rounds alike.

    Args:
        module: Whose parameters they are.
        seed: The run's.
        pieces: What this rank holds of each parameter by name. Default: all of it.

    Source:
        Zamirai et al. 2020, "Revisiting BFloat16 Training", section 4.1.
    """

    def __init__(self, module: nn.Module, *, seed: int, pieces: PiecesFn | None = None) -> None:
        self.seed = seed
        self.step = 0
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._pieces = pieces
        self._found: Mapping[str, Piece] | None = None

    def __call__(self, parameter: nn.Parameter, exact: Tensor, start: int) -> Tensor:
        """Round a stretch of fp32 weights that begins at an element of what this rank holds of the parameter."""
        name = self._names[id(parameter)]
        index = torch.arange(start, start + exact.numel(), device=exact.device)
        piece = self._piece(name, parameter)
        if not piece.is_whole:
            index = global_index(index, shape=tuple(piece.tensor.shape), piece=piece)
        return round_stochastically(exact, index, key=stream_key(self.seed, "rounding", name, self.step))

    def _piece(self, name: str, parameter: nn.Parameter) -> Piece:
        if self._pieces is None:
            return whole_piece(name, local_shard(parameter))
        if self._found is None:
            self._found = self._pieces()
        return self._found[name]


def round_stochastically(exact: Tensor, index: Tensor, *, key: int) -> Tensor:
    """Round fp32 numbers to bf16, up or down by the element's random bits; what isn't finite stays what it is."""
    noise = uniform_bits(index, key) & ((1 << _LOW_BITS) - 1)
    bits = exact.contiguous().view(torch.int32).to(torch.int64) + noise
    kept = (bits >> _LOW_BITS << _LOW_BITS).to(torch.int32).view(torch.float32)
    kept = torch.where(torch.isfinite(exact) & torch.isfinite(kept), kept, exact)
    return kept.to(torch.bfloat16)


def global_index(index: Tensor, *, shape: Sequence[int], piece: Piece) -> Tensor:
    """Turn numbers of elements of a rank's part into those of the whole tensor."""
    found = torch.zeros_like(index)
    stride, rest = 1, index
    for dim in reversed(range(len(shape))):
        place = rest % shape[dim]
        rest = rest // shape[dim]
        found += _global_place(place, piece.ranges[dim]) * stride
        stride *= piece.global_shape[dim]
    return found


def _global_place(place: Tensor, ranges: Sequence[Range]) -> Tensor:
    """Turn places along one dim of the part into places along that dim of the whole."""
    if len(ranges) == 1:
        return place + ranges[0][0]
    offsets = torch.tensor([offset for offset, _ in ranges], device=place.device)
    lengths = torch.tensor([length for _, length in ranges], device=place.device)
    ends = lengths.cumsum(0)
    which = torch.bucketize(place, ends, right=True)
    return place - (ends - lengths)[which] + offsets[which]
