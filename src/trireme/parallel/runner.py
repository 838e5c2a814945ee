"""Running the micro-batches of a step: one after the other, or through the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trireme.parallel.call import Call
from trireme.parallel.model import Done, MomentOf, Prepare, Score
from trireme.parallel.pipeline import Executor
from trireme.parallel.surroundings import Moment, Surroundings
from trireme.parallel.sync import GradientSync
from trireme.parallel.tie import TiedGradients


class PlainRunner:
    """One micro-batch after the other, forward and backward."""

    def __init__(self, module: nn.Module, *, call: Call, surroundings: Surroundings, sync: GradientSync) -> None:
        self.module = module
        self.call = call
        self.surroundings = surroundings
        self.sync = sync

    def train(self, count: int, *, prepare: Prepare, score: Score, done: Done, moment: MomentOf) -> None:
        """Run forwards and backwards; gradients are complete at the end."""
        self.sync.start_step(count)
        self.surroundings.start()
        for index in range(count):
            batch = self.surroundings.batch(prepare(index))
            with self.surroundings.forward(moment(index)):
                objective = score(self.call(self.module, batch), batch, index)
            objective = self.surroundings.part(objective)
            is_last = index == count - 1
            self.sync.before_backward(is_last=is_last)
            torch.autograd.backward(objective)
            self.sync.after_backward(is_last=is_last)
            done(index)
        self.sync.finish()

    def evaluate(self, count: int, *, prepare: Prepare, score: Score) -> None:
        """Run forwards."""
        self.surroundings.start()
        for index in range(count):
            batch = self.surroundings.batch(prepare(index))
            with self.surroundings.forward(None):
                score(self.call(self.module, batch), batch, index)
        self.sync.release()


class PipelineRunner:
    """Micro-batches through the stages of this rank, as the schedule says."""

    def __init__(
        self, executor: Executor, *, surroundings: Surroundings, sync: GradientSync, ties: TiedGradients
    ) -> None:
        self.executor = executor
        self.surroundings = surroundings
        self.sync = sync
        self.ties = ties
        self._moments: dict[int, Moment | None] = {}
        self._numbered = 0
        executor.stages.around = lambda number: self.surroundings.forward(self._moments.get(number))

    def train(self, count: int, *, prepare: Prepare, score: Score, done: Done, moment: MomentOf) -> None:
        """Run the step's actions; gradients are complete at the end."""
        self.ties.start()
        self.sync.start_step(count)
        self.surroundings.start()
        self._moments = {self._numbered + index: moment(index) for index in range(count)}
        self.executor.run(self._batches(count, prepare), loss_of=self._scored(score))
        self.sync.finish()
        self.ties.sum()  # after the data-parallel sums: each stage adds what is complete
        for index in range(count):
            done(index)

    def evaluate(self, count: int, *, prepare: Prepare, score: Score) -> None:
        """Run the forwards."""
        self.surroundings.start()
        self.executor.run(self._batches(count, prepare), loss_of=self._scored(score), only_forward=True)
        self.sync.release()

    def _batches(self, count: int, prepare: Prepare) -> list[Mapping[str, Any]]:
        self._numbered += count  # the executor numbers forwards on as well
        return [self.surroundings.batch(prepare(index)) for index in range(count)]

    def _scored(self, score: Score) -> Score:
        def scored(outputs: Any, batch: Mapping[str, Any], index: int) -> Tensor:
            with self.surroundings.active():
                objective = score(outputs, batch, index)
            return self.surroundings.part(objective)

        return scored
