"""What a step tells whoever sums gradients over data-parallel ranks, and several of them as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from trireme.parallel.traffic import Traffic, add_traffic


class GradientSync(Protocol):
    """Sums gradients over the ranks that hold copies of a parameter; after ``finish`` every ``.grad`` is complete.

    A step calls, in this order: ``start_step`` before the first forward; around every backward
    ``before_backward`` and ``after_backward`` with the stage it belongs to (0 without a pipeline) and whether it is
    that stage's last of the step; ``finish`` after the last one. A backward in two halves (inputs, then weights)
    counts as last only with its last weights: tell both halves ``is_last=False``, then once more
    ``after_backward(stage, is_last=True)``.
    """

    def start_step(self, num_microbatches: int) -> None:
        """Begin a step; gradients that are there already are complete sums and stay counted as they are."""
        ...

    def before_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Say that a backward of this stage begins."""
        ...

    def after_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Say that it ended."""
        ...

    def finish(self) -> None:
        """Wait for all sums; a parameter without gradient on every rank keeps None."""
        ...

    def release(self) -> None:
        """Free what forwards without a backward (evaluation) gathered; the module's parameters are shards again."""
        ...

    @property
    def traffic(self) -> Traffic:
        """What the last step sent."""
        ...


class SyncTogether:
    """Several syncs as one: dense parameters and experts, say, which are summed over different ranks."""

    def __init__(self, *syncs: GradientSync) -> None:
        self.syncs: Sequence[GradientSync] = syncs

    def start_step(self, num_microbatches: int) -> None:
        """Begin a step with all."""
        for each in self.syncs:
            each.start_step(num_microbatches)

    def before_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Tell all that a backward begins."""
        for each in self.syncs:
            each.before_backward(stage, is_last=is_last)

    def after_backward(self, stage: int = 0, *, is_last: bool) -> None:
        """Tell all that it ended."""
        for each in self.syncs:
            each.after_backward(stage, is_last=is_last)

    def finish(self) -> None:
        """Wait for all."""
        for each in self.syncs:
            each.finish()

    def release(self) -> None:
        """Let all free what evaluation gathered."""
        for each in self.syncs:
            each.release()

    @property
    def traffic(self) -> Traffic:
        """What all sent together."""
        return add_traffic([each.traffic for each in self.syncs])
