"""How every parameter of a module is cut over the ranks of one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trireme.interpret.collective import take
from trireme.interpret.opaque import OpaqueDims
from trireme.interpret.split import Split
from trireme.interpret.token_shard import TokenPlace


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSplit:
    """One parameter: the dim that is cut and how, both None where it stays whole, and why."""

    shape: tuple[int, ...]
    dim: int | None
    split: Split | None
    reason: str

    def take(self, whole: Tensor, *, rank: int) -> Tensor:
        """Give one rank's share of a whole tensor."""
        if self.dim is None or self.split is None:
            return whole
        return take(whole, self.dim, self.split, rank).contiguous()

    def assemble(self, shares: Sequence[Tensor]) -> Tensor:
        """Give the whole tensor from every rank's share."""
        if self.dim is None or self.split is None:
            return shares[0]
        whole = shares[0].new_empty(self.shape)
        for rank, share in enumerate(shares):
            used = 0
            for start, length in self.split.ranges(rank):
                whole.narrow(self.dim, start, length).copy_(share.narrow(self.dim, used, length))
                used += length
        return whole

    def local_shape(self, *, rank: int) -> torch.Size:
        """Give the shape of one rank's share."""
        shape = list(self.shape)
        if self.dim is not None and self.split is not None:
            shape[self.dim] = self.split.length(rank)
        return torch.Size(shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPlan:
    """Splits by parameter name (tied names each have theirs, equal), and what trials found.

    Attributes:
        ties: Name of the first use by name of each further one; they are counted once.
        passes: How often the module was walked through.
        tokens: With sequence parallelism, where positions are in what matrices give that are cut along their inputs.
        tokens_stopped: What kept further such places from being found.
        cuts_outputs: Whether what ``forward`` returns is sharded, so that the loss must be computed inside
            ``interpreting`` too (or the outputs made whole by ``Interpreter.gather``).
        tables: How many tables are cut by rows, by the length of their rows: what is looked up in them is added up.
    """

    degree: int
    parameters: Mapping[str, ParameterSplit]
    ties: Mapping[str, str]
    opaque: OpaqueDims
    passes: int
    cuts_outputs: bool
    tables: Mapping[int, int] = field(default_factory=dict)
    tokens: Mapping[str, TokenPlace] = field(default_factory=dict)
    tokens_stopped: str | None = None

    def local_param_ratio(self, *, rank: int = 0) -> float:
        """Give the parameters that a rank holds over all of them."""
        own = {name: each for name, each in self.parameters.items() if name not in self.ties}
        held = sum(math.prod(each.local_shape(rank=rank)) for each in own.values())
        return held / max(1, sum(math.prod(each.shape) for each in own.values()))

    @property
    def whole(self) -> dict[str, str]:
        """Names of the parameters that every rank holds whole, with the reason."""
        return {name: each.reason for name, each in self.parameters.items() if each.dim is None}
