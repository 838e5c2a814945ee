"""Sums in two layers: inside the node first, then across nodes on a share each, then inside again.

Inside a node every rank adds up one share of the gradient; ranks with the same share in different nodes sum it; the
node's ranks tell each other. Of m nodes of l ranks the gradient crosses a node's border 2 (m - 1) times in all,
where a flat ring takes it across 2 m (n - 1) / n times (n = m l).
"""

from __future__ import annotations

from dataclasses import replace

from trireme.parallel.bucket import Bucket
from trireme.parallel.link import Link
from trireme.parallel.wire import Summation


class LayeredSum:
    """Reduce-scatter inside, any sum across, all-gather inside. Satisfies ``Summation``."""

    def __init__(self, inside: Link, across: Summation) -> None:
        self.inside = inside
        self.across = across
        self.block = across.block
        self.multiple = across.multiple * inside.degree

    def sum(self, bucket: Bucket) -> None:
        """Sum; what the ranks of a node have of one share is added up in their order."""
        shares = self.inside.all_to_all(bucket.flat)
        share = shares.view(self.inside.degree, -1).sum(0)
        self.across.sum(replace(bucket, flat=share, views=(), names=()))
        bucket.flat.copy_(self.inside.all_gather(share))
