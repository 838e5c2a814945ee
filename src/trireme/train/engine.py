"""The one seam through which the ranks of a layout enter a step.

A step calls it for the counts, before the first backward; to run its forwards and backwards; and for what is
reported. Everything a step decides (skip, clip, stop) follows from these reduced numbers, so ranks decide alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from trireme.checkpoint import (
    MODEL_PREFIX,
    OPTIMIZER_PREFIX,
    Checkpoint,
    StatePiece,
    restore_tensors,
    whole_pieces,
)
from trireme.interpret import HostGenerators
from trireme.parallel import Moment, StepTraffic
from trireme.train.optim import grad_norm
from trireme.train.replica import ReplicaProblem
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The forwards and backwards of one step.

    ``prepare(i)`` gives the tensors of micro-batch i on the device, ``call(module, tensors)`` its outputs,
    ``score(outputs, tensors, i)`` the scalar to differentiate; ``done(i)`` hears that its backward is over;
    ``moment(i)`` says where in training it stands.
    """

    count: int
    prepare: Callable[[int], Mapping[str, Any]]
    call: Callable[[nn.Module, Mapping[str, Any]], Any]
    score: Callable[[Any, Mapping[str, Any], int], torch.Tensor]
    done: Callable[[int], None] = lambda index: None
    moment: Callable[[int], Moment | None] = lambda index: None


OWN_PREFIX = "communication/"
"""Of tensors that are one rank's alone."""


def is_own(name: str) -> bool:
    """Tell whether a tensor of a checkpoint is one rank's alone."""
    return name.startswith(OWN_PREFIX)


class Engine(Protocol):
    """What a step needs from whoever computes it."""

    rank: int
    """Which of the run's ranks this is."""

    layout_text: str
    """The layout, as a checkpoint names it."""

    lockstep: bool
    """Whether every rank must run the same number of forwards and backwards."""

    keeps_casts: bool
    """Whether a weight's cast to 16 bits may be kept for the step."""

    parts: int | None
    """Micro-batches a step where nothing else says how many; None: one."""

    def first_row(self, num_seqs: int) -> int:
        """Return which row of the global batch this rank's ``num_seqs`` begin at; dropout counts by it."""
        ...

    def num_passes(self, wanted: int) -> int:
        """Return how many micro-batches to run, where this rank has ``wanted``."""
        ...

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts summed over data-parallel ranks; called before the first backward."""
        ...

    def divisor(self, count: int, *, total: int) -> int:
        """Return what this rank's losses are divided by, where it counts ``count`` of the global ``total``."""
        ...

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return each flag as set if it is on any rank, so that ranks decide alike."""
        ...

    def prepare(self, *, scale: float) -> None:
        """Hear what gradients of the step that begins are multiplied by."""
        ...

    def settle(self, *, is_updated: bool) -> None:
        """Hear whether the step updated the weights."""
        ...

    def conclude(self) -> None:
        """Hear that no step follows: replicas that trained by themselves become one."""
        ...

    def read_traffic(self) -> StepTraffic | None:
        """Return what this rank sent in the step; None where there is nobody to send to."""
        ...

    def run(self, module: nn.Module, passes: Passes) -> None:
        """Run all forwards and backwards; afterwards gradients are sums over the global batch."""
        ...

    def evaluate(self, module: nn.Module, passes: Passes) -> None:
        """Run the forwards alone and have each scored."""
        ...

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Return reported sums (loss) over all ranks that have a part of them."""
        ...

    def grad_norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm over all gradients of all ranks, each element once."""
        ...

    def merge(self, value: Any) -> list[Any]:
        """Return every rank's value, JSON, in the order of ranks."""
        ...

    def own_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return state that is this rank's alone, beside ``tensors``, which all ranks have a part of."""
        ...

    def own_state(self) -> Any:
        """Return the JSON of it, of all ranks; None where there is none."""
        ...

    def restore_own(self, state: Any) -> str | None:
        """Take what ``own_state`` gave and make room for the tensors; or return why they are left, as a sentence."""
        ...

    def state_pieces(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, StatePiece]:
        """Return this rank's state with where each tensor lies in the whole."""
        ...

    def compare_replicas(self) -> ReplicaProblem | None:
        """Return a parameter whose copies on several ranks differ; None if there is none."""
        ...

    def restore_state(self, module: nn.Module, checkpoint: Checkpoint, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill this rank's state from a checkpoint of any layout, strictly."""
        ...


class OneDevice:
    """One device: micro-batch after micro-batch, nothing to reduce.

    Args:
        seed: With the step, decides what Python and numpy draw in a forward; alike on ranks.
    """

    rank = 0
    layout_text = "dp=1"
    lockstep = False
    keeps_casts = True
    parts: int | None = None

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def first_row(self, num_seqs: int) -> int:
        """Return zero: its rows are the global batch."""
        return 0

    def num_passes(self, wanted: int) -> int:
        """Return the number as it is."""
        return wanted

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts as they are."""
        return list(counts)

    def divisor(self, count: int, *, total: int) -> int:
        """Return the count of all."""
        return total

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return the flags as they are."""
        return list(flags)

    def prepare(self, *, scale: float) -> None:
        """Do nothing: no gradient is kept."""

    def settle(self, *, is_updated: bool) -> None:
        """Do nothing: no gradient is kept."""

    def conclude(self) -> None:
        """Do nothing: there is one replica."""

    def read_traffic(self) -> StepTraffic | None:
        """Return nothing: there is nobody to send to."""
        return None

    def own_tensors(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return nothing: all state is in ``tensors``."""
        return {}

    def own_state(self) -> Any:
        """Return nothing."""
        return None

    def restore_own(self, state: Any) -> str | None:
        """Say that what ranks kept is left."""
        return None if state is None else say("train.wire_left", saved=state["signature"]["layout"], here="1")

    def run(self, module: nn.Module, passes: Passes) -> None:
        """Run forward and backward of each micro-batch in turn."""
        generators = HostGenerators(module, seed=self._seed)
        for index in range(passes.count):
            tensors = passes.prepare(index)
            moment = passes.moment(index)
            with generators.at(0 if moment is None else moment.step):
                outputs = passes.call(module, tensors)
            objective = passes.score(outputs, tensors, index)
            torch.autograd.backward(objective)
            passes.done(index)

    def evaluate(self, module: nn.Module, passes: Passes) -> None:
        """Run the forward of each micro-batch in turn."""
        generators = HostGenerators(module, seed=self._seed)
        for index in range(passes.count):
            tensors = passes.prepare(index)
            with generators.at(0):
                outputs = passes.call(module, tensors)
            passes.score(outputs, tensors, index)

    def sum_values(self, values: Sequence[float]) -> list[float]:
        """Return the values as they are."""
        return list(values)

    def grad_norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm over this device's gradients."""
        return grad_norm(parameters)

    def merge(self, value: Any) -> list[Any]:
        """Return the one value."""
        return [value]

    def state_pieces(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, StatePiece]:
        """Return the live tensors: all of them are here."""
        return {name: replace(piece, frozen=is_frozen(piece.tensor)) for name, piece in whole_pieces(tensors).items()}

    def compare_replicas(self) -> ReplicaProblem | None:
        """Return None: there is one copy."""
        return None

    def restore_state(self, module: nn.Module, checkpoint: Checkpoint, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the checkpoint's tensors into place."""
        parts = (MODEL_PREFIX, OPTIMIZER_PREFIX) if any(map(is_own, checkpoint.names)) else ("",)
        for part in parts:
            restore_tensors(
                checkpoint, {name: each for name, each in targets.items() if name.startswith(part)}, prefix=part
            )


def is_frozen(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor of the state is a parameter that nothing trains."""
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad
