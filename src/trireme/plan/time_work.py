"""Work: what a stretch of a step asks of the machine, part by part, before anything is lost to friction.

Seconds here are those of the data sheets and of the cluster's measured links; what kernels really reach of them is
in ``time_rates``. Keeping the two apart lets one search reuse the same work under any rates.
"""

from __future__ import annotations

from typing import NamedTuple


class Work(NamedTuple):
    """Seconds by what they are spent on, and a count of kernels.

    ``products_s``: matrix products at the ceiling of large ones, whole tiles and waves counted. ``ramps_s``: the same
    over the inner length in thousands, for a tile's start and end cost as much however short its loop.
    ``narrow_s``: products again, where 8-bit or 4-bit formats do them. ``attention_s``: fused attention at the
    ceiling. ``traffic_s``: memory traffic of all that isn't a product. ``tensor_s``, ``context_s``, ``expert_s``:
    collectives of those axes. ``kernels``: launches.
    """

    products_s: float = 0.0
    ramps_s: float = 0.0
    narrow_s: float = 0.0
    attention_s: float = 0.0
    traffic_s: float = 0.0
    tensor_s: float = 0.0
    context_s: float = 0.0
    expert_s: float = 0.0
    kernels: float = 0.0

    def plus(self, other: Work, *, times: float = 1.0) -> Work:
        """This and ``times`` the other."""
        return Work(*(left + times * right for left, right in zip(self, other, strict=True)))


NO_WORK = Work()


class Passes(NamedTuple):
    """A block's forward, its backward to the input and to the weights, and what selective recomputation repeats."""

    forward: Work = NO_WORK
    input_grad: Work = NO_WORK
    weight_grad: Work = NO_WORK
    repeated: Work = NO_WORK

    def between_products(self) -> Work:
        """What lies between products with weights, attention's own products among it.

        Sums over ranks behind a product run again, for only the product itself is kept.
        """
        again = self.repeated
        return self.forward._replace(products_s=again.products_s, ramps_s=again.ramps_s, narrow_s=again.narrow_s)
