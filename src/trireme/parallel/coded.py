"""Sums of coded gradients: each rank adds up its part of all ranks' codes, and sends the sum as a code again.

A ring of a half-precision all-reduce rounds at every hop, and nobody knows what was lost. Here each value is coded
twice, both times by a rank that keeps what the code left out. Every rank decodes the same bytes, so all get the same
sum to the bit. What is sent is 2 (n - 1) / n times the coded size, as a ring sends of the plain one.
"""

from __future__ import annotations

from torch import Tensor

from trireme.parallel.bucket import Bucket
from trireme.parallel.codec import Codec
from trireme.parallel.feedback import Feedback
from trireme.parallel.link import Link


class CodedSum:
    """An all-reduce of coded blocks with error feedback on both ways. Satisfies ``Summation``."""

    def __init__(self, link: Link, codec: Codec, *, feedback: Feedback, scope: str, warmup_steps: int = 0) -> None:
        """Sum over ``link``; ``scope`` keeps what is left apart from that of other sums."""
        self.link = link
        self.codec = codec
        self.block = codec.block
        self.multiple = codec.block * link.degree
        self._feedback = feedback
        self._scope = scope
        self._warmup_steps = warmup_steps

    def sum(self, bucket: Bucket) -> None:
        """Sum; in the first steps as it is."""
        if self._feedback.num_steps < self._warmup_steps:
            self.link.all_reduce(bucket.flat)
            return
        blocks = bucket.flat.view(-1, self.block)
        name = f"{self._scope}/{bucket.index}"
        part = scatter_coded(blocks, self.link, self.codec, feedback=self._feedback, name=f"{name}/sent")
        rows = self._code(f"{name}/summed", part)
        blocks.copy_(self.codec.decode(self.link.all_gather(rows), dtype=blocks.dtype))

    def _code(self, name: str, part: Tensor) -> Tensor:
        """Code this rank's part of the sum, with what was left of it before."""
        self._feedback.add_to(name, part)
        rows = self.codec.encode(part)
        self._feedback.leave(name, part, self.codec.decode(rows, dtype=part.dtype))
        return rows


def scatter_coded(blocks: Tensor, link: Link, codec: Codec, *, feedback: Feedback, name: str) -> Tensor:
    """Give this rank's part of the sum over ranks of blocks ``[N, block]``, which are changed; N divides evenly."""
    feedback.add_to(name, blocks)
    rows = codec.encode(blocks)
    feedback.leave(name, blocks, codec.decode(rows, dtype=blocks.dtype))
    received = codec.decode(link.all_to_all(rows), dtype=blocks.dtype)
    return received.view(link.degree, -1, codec.block).sum(0)
