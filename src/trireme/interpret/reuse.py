"""What was made of a tensor once and is used again: q, k and v read one and the same spread input."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


class Reuse:
    """Results by the tensor that they were made of, forgotten in the order in which they came."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[Tensor, int, Tensor]] = {}

    def of(self, tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """Give what ``make`` gives, made again only if the tensor has been written to since."""
        known = self._made.get(id(tensor))
        if known is not None and known[0] is tensor and known[1] == tensor._version:
            return known[2]
        made = make(tensor)
        self._made[id(tensor)] = (tensor, tensor._version, made)
        return made

    def mark(self) -> int:
        """Give a point in time to forget back to."""
        return len(self._made)

    def forget(self, mark: int = 0) -> None:
        """Let go of what was made since a mark."""
        while len(self._made) > mark:
            self._made.popitem()
