"""Two traces held against each other: how far apart, where, and whether rounding explains it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from trireme.verify.trace import StepTrace, Trace

Kind = Literal["gradient", "parameter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """Largest errors that rounding explains, and below which part of the largest number a tensor counts as zero.

    An error is the largest difference within a tensor over the tensor's own largest number, or over ``floor_ratio``
    of the largest number among all tensors where that is more: a gradient that is truly zero (a bias on keys)
    consists of what rounding left of the others.
    """

    loss_error: float
    grad_error: float
    param_error: float
    floor_ratio: float


SINGLE = Tolerance(loss_error=1.5e-5, grad_error=1.2e-4, param_error=3e-5, floor_ratio=1e-2)
"""fp32: 2**7, 2**10 and 2**8 units in the last place. Honest layouts of the zoo stay below a fifth of that; sums over
tokens round most in gradients."""

DOUBLE = Tolerance(loss_error=1e-9, grad_error=1e-9, param_error=1e-9, floor_ratio=1e-4)
"""fp64: honest differences are below 1e-12 here and mistakes are not, so the limit can stand far from both."""

SINGLE_INSIDE_NOISE = 1e-11
"""A module in fp64 that differs from itself by more than this rounds to single precision somewhere inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """One tensor's error; ``step`` counts from 1, and is the last for a parameter."""

    name: str
    kind: Kind
    step: int
    error: float
    limit: float

    @property
    def excess(self) -> float:
        """How many times the limit; what is not finite exceeds everything."""
        return self.error / self.limit if math.isfinite(self.error) else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All differences of two traces. ``tensors`` are sorted, the worst first.

    ``missing``: names that one device has and the layout hasn't; ``extra``: the other way round. A gradient counts
    as well as a parameter: what has none on one device must have none in any layout.
    """

    loss_error: float
    norm_error: float
    tensors: tuple[Worst, ...]
    missing: tuple[str, ...]
    extra: tuple[str, ...]
    tolerance: Tolerance

    @property
    def worst_grad_error(self) -> float:
        """Largest error of a gradient."""
        return max((each.error for each in self.tensors if each.kind == "gradient"), default=0.0)

    @property
    def worst_param_error(self) -> float:
        """Largest error of a parameter after the last step."""
        return max((each.error for each in self.tensors if each.kind == "parameter"), default=0.0)

    @property
    def is_equal(self) -> bool:
        """Whether rounding explains every difference."""
        fine = all(each.error <= each.limit for each in self.tensors)
        numbers = self.loss_error <= self.tolerance.loss_error and self.norm_error <= self.tolerance.grad_error
        return fine and numbers and not self.missing and not self.extra

    def rows_to_look_at(self) -> list[Worst]:
        """Give the errors of the first step that is wrong, the worst first; all errors where none is wrong."""
        bad = [each for each in self.tensors if each.error > each.limit]
        first_step = min((each.step for each in bad), default=1)
        return [each for each in bad if each.step == first_step] if bad else list(self.tensors)

    def worst_names(self, *, limit: int = 5) -> list[str]:
        """Give the names to look at: what is missing, then what is furthest from one device."""
        rows = (each.name for each in self.rows_to_look_at())
        return list(dict.fromkeys([*self.missing, *self.extra, *rows]))[:limit]


def compare(expected: Trace, found: Trace, *, tolerance: Tolerance, ties: Mapping[str, str]) -> Comparison:
    """Hold a layout's trace against one device's.

    Args:
        expected: One device's, with the first name of tied parameters.
        found: The layout's; further names of tied parameters may be there, and are compared as well.
        tolerance: What rounding explains.
        ties: Every name of a parameter to its first.
    """
    tensors: list[Worst] = []
    missing: list[str] = []
    extra: list[str] = []
    for number, (one, other) in enumerate(zip(expected.steps, found.steps, strict=True), start=1):
        tensors += _errors(one.gradients, other.gradients, kind="gradient", step=number, tolerance=tolerance, ties=ties)
        missing += [name for name in one.gradients if name not in other.gradients]
        extra += [name for name in other.gradients if ties.get(name, name) not in one.gradients]
    last = len(expected.steps)
    if expected.parameters or found.parameters:
        tensors += _errors(
            expected.parameters, found.parameters, kind="parameter", step=last, tolerance=tolerance, ties=ties
        )
        missing += [name for name in expected.parameters if name not in found.parameters]
        extra += [name for name in found.parameters if ties.get(name, name) not in expected.parameters]
    return Comparison(
        loss_error=max(_relative(a.loss, b.loss) for a, b in _pairs(expected, found)),
        norm_error=max(_relative(a.grad_norm, b.grad_norm) for a, b in _pairs(expected, found)),
        tensors=tuple(sorted(tensors, key=lambda each: -each.excess)),
        missing=tuple(dict.fromkeys(missing)),
        extra=tuple(dict.fromkeys(extra)),
        tolerance=tolerance,
    )


def _pairs(expected: Trace, found: Trace) -> Iterator[tuple[StepTrace, StepTrace]]:
    return zip(expected.steps, found.steps, strict=True)


def _errors(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    *,
    kind: Kind,
    step: int,
    tolerance: Tolerance,
    ties: Mapping[str, str],
) -> Iterator[Worst]:
    floor = tolerance.floor_ratio * max((_largest(each) for each in expected.values()), default=0.0)
    limit = tolerance.grad_error if kind == "gradient" else tolerance.param_error
    for name, tensor in found.items():
        wanted = expected.get(ties.get(name, name))
        if wanted is not None:
            yield Worst(name=name, kind=kind, step=step, error=tensor_error(wanted, tensor, floor=floor), limit=limit)


def tensor_error(expected: Tensor, found: Tensor, *, floor: float) -> float:
    """Return the largest difference over the largest number expected, or over ``floor`` where that is more."""
    if expected.shape != found.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    difference = float((expected.double() - found.double()).abs().max())
    scale = max(_largest(expected), floor)
    if not math.isfinite(difference):
        same = torch.equal(expected.isfinite(), found.isfinite()) and not bool(expected.isfinite().any())
        return 0.0 if same else math.inf
    return difference / scale if scale else (0.0 if difference == 0.0 else math.inf)


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def _relative(expected: float, found: float) -> float:
    if expected == found:
        return 0.0
    error = abs(expected - found) / max(abs(expected), 1e-30)
    return error if math.isfinite(error) else math.inf
