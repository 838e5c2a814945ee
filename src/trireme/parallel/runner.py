"""Running the micro-batches of a step where there is no pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from trireme.interpret import Binding
from trireme.parallel.call import Call
from trireme.parallel.model import Prepare, Score
from trireme.parallel.sync import GradientSync


class PlainRunner:
    """One micro-batch after the other, forward and backward."""

    def __init__(self, module: nn.Module, *, call: Call, binding: Binding | None, sync: GradientSync) -> None:
        self.module = module
        self.call = call
        self.binding = binding
        self.sync = sync

    def train(self, count: int, *, prepare: Prepare, score: Score, done: Callable[[int], None]) -> None:
        """Run forwards and backwards; gradients are complete at the end."""
        self.sync.start_step(count)
        for index in range(count):
            batch = prepare(index)
            with self._active():
                objective = score(self.call(self.module, batch), batch, index)
            is_last = index == count - 1
            self.sync.before_backward(is_last=is_last)
            torch.autograd.backward(objective)
            self.sync.after_backward(is_last=is_last)
            done(index)
        self.sync.finish()

    def evaluate(self, count: int, *, prepare: Prepare, score: Score) -> None:
        """Run forwards."""
        for index in range(count):
            batch: Mapping[str, Any] = prepare(index)
            with self._active():
                score(self.call(self.module, batch), batch, index)

    def whole(self, outputs: Any) -> Any:
        """Give outputs with nothing cut."""
        return outputs if self.binding is None else self.binding.whole(outputs)

    def _active(self) -> AbstractContextManager[object]:
        return nullcontext() if self.binding is None else self.binding.active()
