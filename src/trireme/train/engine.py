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

from trireme.checkpoint import Checkpoint, StatePiece, restore_tensors, whole_pieces
from trireme.parallel import Moment
from trireme.train.optim import grad_norm


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

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return each flag as set if it is on any rank, so that ranks decide alike."""
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

    def state_pieces(self, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, StatePiece]:
        """Return this rank's state with where each tensor lies in the whole."""
        ...

    def restore_state(self, module: nn.Module, checkpoint: Checkpoint, targets: Mapping[str, torch.Tensor]) -> None:
        """Fill this rank's state from a checkpoint of any layout, strictly."""
        ...


class OneDevice:
    """One device: micro-batch after micro-batch, nothing to reduce."""

    rank = 0
    layout_text = "dp=1"
    lockstep = False
    keeps_casts = True
    parts: int | None = None

    def first_row(self, num_seqs: int) -> int:
        """Return zero: its rows are the global batch."""
        return 0

    def num_passes(self, wanted: int) -> int:
        """Return the number as it is."""
        return wanted

    def sum_counts(self, counts: Sequence[int]) -> list[int]:
        """Return the counts as they are."""
        return list(counts)

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return the flags as they are."""
        return list(flags)

    def run(self, module: nn.Module, passes: Passes) -> None:
        """Run forward and backward of each micro-batch in turn."""
        for index in range(passes.count):
            tensors = passes.prepare(index)
            objective = passes.score(passes.call(module, tensors), tensors, index)
            torch.autograd.backward(objective)
            passes.done(index)

    def evaluate(self, module: nn.Module, passes: Passes) -> None:
        """Run the forward of each micro-batch in turn."""
        for index in range(passes.count):
            tensors = passes.prepare(index)
            passes.score(passes.call(module, tensors), tensors, index)

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

    def restore_state(self, module: nn.Module, checkpoint: Checkpoint, targets: Mapping[str, torch.Tensor]) -> None:
        """Copy the checkpoint's tensors into place."""
        restore_tensors(checkpoint, targets)


def is_frozen(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor of the state is a parameter that nothing trains."""
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad
