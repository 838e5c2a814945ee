"""What planning has learned about parameters so far, shared by the layers of a stack.

What is true of a weight of the first layer is tried at once on its namesakes in the others, so the number of
passes doesn't grow with depth; the last pass walks through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from torch import Tensor, nn

from trireme.interpret.split import CannotSplitError, Refinement, Split, split_evenly
from trireme.words import say


@dataclass(slots=True, kw_only=True)
class Wish:
    """How a parameter's dim wants to be cut: within segments, in whole grains, some lengths not at all."""

    segments: tuple[int, ...]
    grain: int = 1
    kept: frozenset[int] = frozenset()

    def split(self, degree: int) -> Split | None:
        """Give the cut; segments too short for all ranks are kept whole beside a longer one."""
        short = frozenset(length for length in self.segments if length < degree * self.grain)
        kept = self.kept | short
        if kept >= set(self.segments):
            return None
        return split_evenly(self.segments, degree=degree, grain=self.grain, kept=kept)


@dataclass(slots=True, kw_only=True)
class Knowledge:
    """Segments and grains found, parameters given up, and cuts that must be known from the start of a pass."""

    module: nn.Module
    degree: int
    wishes: dict[tuple[str, int], Wish] = field(default_factory=dict)
    denied: dict[str, str] = field(default_factory=dict)
    barred: set[tuple[str, int]] = field(default_factory=set)
    preset: dict[str, tuple[int, Split]] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    _kinds: dict[str, str] = field(default_factory=dict)
    _dims: dict[str, int] = field(default_factory=dict)
    stacks: list[str] = field(init=False)
    num_elements: int = field(init=False)

    def __post_init__(self) -> None:
        self.stacks = stacks_of(self.module)
        self.num_elements = sum(parameter.numel() for parameter in self.module.parameters())
        # Now, for names that a thinned module doesn't show are asked for too.
        self._learn_names()

    def _learn_names(self) -> None:
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            self._kinds[name] = _kind(name, self.stacks)
            self._dims[name] = parameter.ndim

    def kind(self, name: str) -> str:
        """Give a parameter's name without its layer's number."""
        return self._kinds[name]

    def num_dims(self, name: str) -> int:
        """Give how many dims a parameter has."""
        return self._dims[name]

    def allows(self, name: str, dim: int) -> bool:
        """Whether a dim of a parameter may be cut at all."""
        kind = self.kind(name)
        return kind not in self.denied and (kind, dim) not in self.barred

    def split(self, name: str, dim: int, length: int) -> Split | None:
        """Give the cut that is wanted for a parameter's dim, or None if it is too short or given up."""
        kind = self.kind(name)
        if not self.allows(name, dim):
            return None
        wish = self.wishes.get((kind, dim), Wish(segments=(length,)))
        found = wish.split(self.degree)
        if found is None and self.num_dims(name) > 2:
            self.barred.add((kind, dim))
        elif found is None:
            self.denied[kind] = say("interpret.too_few", grain=wish.grain, length=length, degree=self.degree)
        return found

    def learn(self, error: CannotSplitError, cuts: dict[str, tuple[int, Split]]) -> bool:
        """Refine or give up the parameters responsible; False if nothing new came of it."""
        refined = [self._refine(name, cuts[name], error.refinement) for name in error.sources if name in cuts]
        self.preset.clear()
        if any(refined):
            return True
        if self._bar(error, cuts):
            return True
        new = {self.kind(name) for name in error.sources} - set(self.denied)
        reason = say(error.key, **error.values)
        self.denied.update(dict.fromkeys(new, reason))
        return bool(new)

    def _bar(self, error: CannotSplitError, cuts: dict[str, tuple[int, Split]]) -> bool:
        """Leave one dim of weights that have more than two, before giving them up."""
        several = [name for name in error.sources if name in cuts and self.num_dims(name) > 2]
        new = {(self.kind(name), cuts[name][0]) for name in several} - self.barred
        self.barred |= new
        return bool(new)

    def _refine(self, name: str, cut: tuple[int, Split], wanted: Refinement | None) -> bool:
        dim, split = cut
        key = (self.kind(name), dim)
        old = self.wishes.get(key, Wish(segments=(split.total,)))
        if wanted is None:
            return False
        segments = _with_boundaries(old.segments, wanted.boundaries)
        grain = _with_grain(old.grain, wanted.grain)
        if segments is None or grain is None:
            return False
        kept = old.kept | {int(length) for length in wanted.kept if length.denominator == 1 and length in segments}
        wish = Wish(segments=segments, grain=grain, kept=kept)
        if wish == old or wish.split(self.degree) is None:
            return False
        self.wishes[key] = wish
        return True


def _with_boundaries(segments: tuple[int, ...], boundaries: Sequence[Fraction]) -> tuple[int, ...] | None:
    """Cut further every run of segments that the boundaries cover; None if they fall inside an element."""
    if not boundaries:
        return segments
    if any(end.denominator != 1 for end in boundaries):
        return None
    ends = [int(end) for end in boundaries]
    pieces = tuple(end - start for start, end in zip([0, *ends], ends, strict=False))
    result: list[int] = []
    place = 0
    while place < len(segments):
        last = _run_of(segments, place, ends[-1])
        result += pieces if last is not None else segments[place : place + 1]
        place = place + 1 if last is None else last
    return tuple(result)


def _run_of(segments: tuple[int, ...], first: int, length: int) -> int | None:
    """Find where a run of segments that begins at ``first`` has this length."""
    total = 0
    for place in range(first, len(segments)):
        total += segments[place]
        if total >= length:
            return place + 1 if total == length else None
    return None


def _with_grain(grain: int, wanted: Fraction | None) -> int | None:
    if wanted is None:
        return grain
    return math.lcm(grain, int(wanted)) if wanted.denominator == 1 and wanted > 0 else None


def stacks_of(module: nn.Module) -> list[str]:
    """Find containers of layers alike: their children are of one class and have children of their own."""
    found = []
    for name, container in module.named_modules():
        children = list(container.children())
        alike = isinstance(container, (nn.ModuleList, nn.Sequential)) and len({type(child) for child in children}) == 1
        if alike and all(any(True for _ in child.children()) for child in children):
            found.append(f"{name}." if name else "")
    return found


def _kind(name: str, stacks: list[str]) -> str:
    # From the innermost out: an outer number that is replaced hides what is inside.
    for stack in sorted(stacks, key=len, reverse=True):
        if name.startswith(stack):
            number, _, rest = name.removeprefix(stack).partition(".")
            if number.isdigit():
                name = f"{stack}#.{rest}"
    return name


def parameter_dim(parameter: Tensor, dims: tuple[int | None, ...], tensor: Tensor, dim: int) -> int | None:
    """Give the parameter's dim behind a dim of what shows it, if it is all of it."""
    behind = dims[dim]
    return behind if behind is not None and parameter.shape[behind] == tensor.shape[dim] else None
