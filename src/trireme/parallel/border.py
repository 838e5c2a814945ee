"""What crosses the borders of a pipeline's stages, learnt from one rank that runs all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trireme.parallel.model import ParallelModel
from trireme.parallel.runner import PipelineRunner
from trireme.parallel.stage import StageOutput, StageSet
from trireme.parallel.transport import Contract, Spec, contract_of
from trireme.plan import Message

Borders = dict[int, Contract]
"""By the stage before the border: what it sends on."""


def watch_borders(model: ParallelModel, *, done: Callable[[int], object] = lambda stage: None) -> Borders:
    """Give what each stage of this rank sends on; filled in as they run, and ``done`` is told of each."""
    stages, borders = _runner(model).executor.stages, Borders()
    stages.forward = _noting(stages, borders, done)  # type: ignore[method-assign]
    return borders


def _noting(stages: StageSet, borders: Borders, done: Callable[[int], object]) -> Callable[..., StageOutput]:
    run = stages.forward

    def forward(stage: int, *args: Any, **kwargs: Any) -> StageOutput:
        made = run(stage, *args, **kwargs)
        borders[stage] = contract_of(made.to_send)
        done(stage)
        return made

    return forward


def expect_borders(model: ParallelModel, borders: Borders) -> None:
    """Have this rank know what it will receive: nobody is there to tell."""

    def expected(message: Message, sent: Mapping[Any, Contract]) -> Contract | None:
        if message.kind == "F":
            return borders[message.source]
        forth = next((held for key, held in sent.items() if key[:2] == ("F", message.target)), None)
        return None if forth is None else tuple(map(_gradient, forth))

    _runner(model).executor.transport.expect(expected)


def _gradient(spec: Spec | None) -> Spec | None:
    """A gradient lies as what it is the gradient of; integers have none."""
    if spec is None or not spec.differentiates:
        return None
    return Spec(shape=spec.shape, dtype=spec.dtype, differentiates=False, notes={})


def _runner(model: ParallelModel) -> PipelineRunner:
    runner = model.runner
    assert isinstance(runner, PipelineRunner)
    return runner
