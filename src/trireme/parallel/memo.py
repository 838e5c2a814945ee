"""What a block gives, known without running it: same code, same shapes in, same shapes out."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trireme.interpret import Draws, is_counting
from trireme.parallel.absent import Absence
from trireme.parallel.tracing_private import bare_function_calls, pytree
from trireme.parallel.value import is_absent, seen_shape, tensors_in

_PLACE_NAMES = ("layer", "idx", "index", "block_id", "number")
"""Attributes that say where a block stands; two blocks that differ in them alone are alike."""

_PLAIN = (bool, int, float, str, complex, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum, type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What is known of a tensor that isn't there."""

    shape: tuple[int, ...]
    stride: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True, slots=True, kw_only=True)
class Same:
    """A result that is one of the arguments."""

    place: int


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a block gives and what finding out has told.

    Attributes:
        leaves: Of the result: a tensor's ``Meta``, ``Same``, or a plain value.
        spec: How the leaves nest.
        flops: Of the forward.
        inner_reads: Names, within the block, of its parameters that were read.
        outer_reads: Names, within the module, of others that were read.
        draws: Random numbers that the block's forward takes.
        is_assumed: Whether it is only supposed, because the block's code asks for values.
    """

    leaves: list[Any]
    spec: Any
    flops: int = 0
    inner_reads: frozenset[str] = field(default_factory=frozenset)
    outer_reads: frozenset[str] = field(default_factory=frozenset)
    draws: Draws = field(default_factory=dict)
    is_assumed: bool = False
    spares: dict[int, Tensor] = field(default_factory=dict)

    def build(self, absence: Absence, args: Any, kwargs: Any, *, reuses: bool = False) -> Any:
        """Give the result, absent.

        Args:
            absence: Makes absent tensors.
            args: Of the block.
            kwargs: Of the block.
            reuses: Give the same absent tensors each time, which is quicker; for results that cross no border.
        """
        given = list(tensors_in(args, kwargs))
        with bare_function_calls():
            leaves = [self._leaf(absence, place, given, reuses) for place in range(len(self.leaves))]
        return pytree.tree_unflatten(leaves, self.spec)

    def _leaf(self, absence: Absence, place: int, given: list[Tensor], reuses: bool) -> Any:
        leaf = self.leaves[place]
        if isinstance(leaf, Same):
            return given[leaf.place]
        if not isinstance(leaf, Meta):
            return leaf
        spare = self.spares.get(place) if reuses else None
        if spare is not None and is_absent(spare):  # one that was put in place of a received tensor is not any more
            return spare
        made = absence.make(leaf.shape, leaf.stride, dtype=leaf.dtype, device=leaf.device)
        if reuses:
            self.spares[place] = made
        return made

    def agrees_with(self, result: Any) -> bool:
        """Whether a result that was really computed has these shapes."""
        leaves, spec = pytree.tree_flatten(result)
        return spec == self.spec and all(_fits(*pair) for pair in zip(self.leaves, leaves, strict=True))


def outcome_of(result: Any, args: Any, kwargs: Any) -> Outcome | None:
    """Describe a result so that it can be built again; None if it holds what can't."""
    leaves, spec = pytree.tree_flatten(result)
    places = {id(tensor): place for place, tensor in enumerate(tensors_in(args, kwargs))}
    described: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            described.append(Same(place=places[id(leaf)]) if id(leaf) in places else meta_of(leaf))
        elif isinstance(leaf, _PLAIN):
            described.append(leaf)
        else:
            return None
    return Outcome(leaves=described, spec=spec)


def assumed_outcome(args: Any, kwargs: Any, stream: Tensor) -> Outcome:
    """Suppose that a block gives what it gets: a tensor like ``stream``."""
    _, spec = pytree.tree_flatten(stream)
    return Outcome(leaves=[meta_of(stream)], spec=spec, is_assumed=True)


def meta_of(tensor: Tensor) -> Meta:
    """Describe a tensor as user code sees it."""
    shape = seen_shape(tensor)
    is_plain = tensor.layout == torch.strided and shape == tuple(tensor.shape)
    stride = tuple(tensor.stride()) if is_plain else None
    return Meta(shape=shape, stride=stride, dtype=tensor.dtype, device=tensor.device)


def _fits(expected: Any, found: Any) -> bool:
    if isinstance(expected, Same):
        return isinstance(found, Tensor)
    if isinstance(expected, Meta):
        return isinstance(found, Tensor) and (seen_shape(found), found.dtype) == (expected.shape, expected.dtype)
    return bool(expected == found)


def outcome_key(signature: int, module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Give under what a block's outcome is remembered."""
    with bare_function_calls():
        return (signature, module.training, is_counting(), describe(args), describe(kwargs))


def describe(value: Any) -> Any:
    """Give what of arguments decides about the shapes of results, as a key."""
    if isinstance(value, Tensor):
        return (seen_shape(value), value.dtype, value.device)
    if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        return (type(value), *(describe(each) for each in value))
    if isinstance(value, Mapping):
        return (type(value), *((key, describe(each)) for key, each in value.items()))
    return (type(value), value) if isinstance(value, _PLAIN) else type(value)


_SIGNATURES: dict[Any, int] = {}


def signature_of(module: nn.Module) -> int:
    """Give a number for what of a block decides about its shapes: classes, settings, the shapes of what it holds."""
    parts: list[Any] = []
    for path, each in module.named_modules():
        settings = sorted((name, value) for name, value in vars(each).items() if _is_setting(name, value))
        held = [*each._parameters.items(), *each._buffers.items()]
        shapes = tuple((name, None if value is None else (*value.shape, value.dtype)) for name, value in held)
        parts.append((path, type(each), repr(settings), shapes))
    return _SIGNATURES.setdefault(tuple(parts), len(_SIGNATURES))


def _is_setting(name: str, value: Any) -> bool:
    return type(value) in (bool, int, str) and not any(part in name.lower() for part in _PLACE_NAMES)


def holds_staged(value: Any, depends: Any, *, depth: int = 3) -> bool:
    """Whether an object that no tree shows into (a cache, say) holds tensors made from parameters."""
    if isinstance(value, Tensor):
        return bool(depends(value))
    if depth == 0 or isinstance(value, (*_PLAIN, nn.Module)) or callable(value):
        return False
    if isinstance(value, Mapping):
        return any(holds_staged(each, depends, depth=depth - 1) for each in value.values())
    if isinstance(value, (list, tuple, set)):
        return any(holds_staged(each, depends, depth=depth) for each in value)
    return any(holds_staged(each, depends, depth=depth - 1) for each in getattr(value, "__dict__", {}).values())


def opaque_parts(*values: Any) -> list[Any]:
    """Give the leaves of arguments that are neither tensors nor plain values."""
    leaves, _ = pytree.tree_flatten(values)
    return [leaf for leaf in leaves if not isinstance(leaf, (Tensor, *_PLAIN))]
