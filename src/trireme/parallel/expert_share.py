"""Who owns which experts: neighbours go to one rank, and what doesn't divide goes to the first ranks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from trireme.errors import LayoutError


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertShare:
    """One set of experts as dealt out to the ranks of an axis, seen from one of them."""

    num_experts: int
    degree: int
    rank: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many experts each rank owns."""
        each, extra = divmod(self.num_experts, self.degree)
        return tuple(each + (rank < extra) for rank in range(self.degree))

    @property
    def length(self) -> int:
        """How many experts this rank owns."""
        return self.lengths[self.rank]

    @property
    def start(self) -> int:
        """The first expert of this rank."""
        return (0, *accumulate(self.lengths))[self.rank]

    @property
    def owned(self) -> range:
        """The experts of this rank."""
        return range(self.start, self.start + self.length)


def check_share(share: ExpertShare, *, path: str) -> None:
    """Check that every rank gets an expert.

    Raises:
        LayoutError: There are more ranks than experts.
    """
    if share.num_experts < share.degree:
        near = max(degree for degree in range(1, share.num_experts + 1) if share.degree % degree == 0)
        raise LayoutError("parallel.expert_few", path=path, experts=share.num_experts, ep=share.degree, near=near)
