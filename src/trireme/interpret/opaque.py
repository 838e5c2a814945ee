"""Autograd functions of the user's: what happens inside is hidden, so it is tried out.

If a function, given every rank's shares in turn, returns exactly the shares of what it returns for whole
inputs, and its gradients do the same, then it may run on shards. The trial uses random numbers in fp64, once per
function and set of sharded dims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trireme.errors import LayoutError
from trireme.interpret.call import Call, sharded
from trireme.interpret.collective import take
from trireme.interpret.sequence_split import balanced_split, counts_positions
from trireme.interpret.split import Shard, Split
from trireme.interpret.tensor_state import global_shape, shard_of, sources_of
from trireme.interpret.torch_private import CheckpointFunction, apart, apply_function, watching

if TYPE_CHECKING:
    from trireme.interpret.interpreter import Interpreter

OpaqueDims = dict[str, tuple[int, ...] | None]
"""By function and sharded dims: the sharded dim of each result, or None where shards would give something else."""

_ADDS_UP = -1
"""In place of a result's dim: the ranks' results add up to the whole one, as sums of losses do."""

_TRIAL_ERROR = 1e-9
"""Largest difference over the largest number that the order of fp64 sums explains."""


def watched_functions(interpreter: Interpreter) -> AbstractContextManager[Callable[..., Any]]:
    """Show ``torch.autograd.Function.apply`` and recomputation to the interpreter; torch has no hook for them.

    Entering gives how a function is applied outside of this interpreter: the one around it may watch too.
    """

    def apply(cls: Any, args: tuple[Any, ...]) -> Any:
        if cls is CheckpointFunction:
            raise LayoutError("interpret.reentrant")
        result = interpreter.apply_function(cls, args)
        return interpreter.apply_outside(cls, *args) if result is NotImplemented else result

    def recompute(generator: Any, function: Callable[..., Any], rest: tuple[Any, ...], options: Any) -> Iterator[None]:
        mark = interpreter.reuse.mark()
        yield from generator(_under(interpreter, function), *rest, **options)
        interpreter.reuse.forget(mark)

    return watching(apply, recompute)


def _under(interpreter: Interpreter, function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter the interpreter again where backward makes activations anew, which happens outside it."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with interpreter.active():
            return function(*args, **kwargs)

    return run


def apply_opaque(call: Call, function: Any, known: OpaqueDims) -> Any:
    """Run the function on local shards if that gives local shards of its results, or parts that add up to them."""
    shards = [shard_of(value) for value in call.args]
    reference = next(shard for shard in shards if shard is not None)
    unlike = [value for value, shard in zip(call.args, shards, strict=True) if shard and shard.split != reference.split]
    if unlike or reference.split.keeps_some:
        raise call.refuse(unlike or call.args)
    for cut in _candidates(call.args, shards):
        key = _key(function, call.args, cut)
        if key not in known:
            known[key] = _tried(function, call.args, cut, call.interpreter.line.degree)
        dims = known[key]
        if dims is not None:
            return _applied(call, function, cut, reference, dims)
    # The last one first: queries stay cut by heads if keys and values are whole.
    raise call.refuse([value for value in call.args if shard_of(value)][-1:])


def _candidates(args: tuple[Any, ...], shards: list[Shard | None]) -> Iterator[list[Shard | None]]:
    """Yield the shards as they are; then with whole tensors cut that seem to go along, as labels with logits."""
    yield shards
    place, reference = next((place, shard) for place, shard in enumerate(shards) if shard is not None)
    from_right = reference.dim - args[place].ndim
    more = [
        shard or _alike(value, reference, (value.ndim + from_right, reference.dim) if isinstance(value, Tensor) else ())
        for value, shard in zip(args, shards, strict=True)
    ]
    if more != shards:
        yield more


def _alike(value: Any, reference: Shard, dims: tuple[int, ...]) -> Shard | None:
    fitting = [dim for dim in dims if 0 <= dim < value.ndim and value.shape[dim] == reference.split.total > 1]
    return Shard(dim=fitting[0], split=reference.split, sources=reference.sources) if fitting else None


def _applied(
    call: Call, function: Any, cut: list[Shard | None], reference: Shard, dims: tuple[int, ...]
) -> Tensor | tuple[Tensor, ...]:
    interpreter = call.interpreter
    merged = Shard(dim=0, split=reference.split, sources=sources_of(call.args), unit=reference.unit)
    args = [_local(interpreter, value, shard) for value, shard in zip(call.args, cut, strict=True)]
    results = interpreter.apply_outside(function, *args)
    several = isinstance(results, tuple)
    marked = [
        interpreter.sum_partial(result) if dim == _ADDS_UP else sharded(result, merged, dim=dim)
        for result, dim in zip(results if several else (results,), dims, strict=True)
    ]
    return tuple(marked) if several else marked[0]


def _local(interpreter: Interpreter, value: Any, shard: Shard | None) -> Any:
    if shard_of(value) is not None:
        return value
    return interpreter.spread(value) if shard is None else interpreter.share(value, shard.dim, shard.split)


def _tried_split(split: Split, shard: Shard, degree: int = 2) -> Split:
    """Give the cut to try with: of positions a short one, for their number changes from batch to batch."""
    return balanced_split(4 * degree + 1, degree) if counts_positions(shard.sources) else split


def _key(function: Any, args: tuple[Any, ...], shards: list[Shard | None]) -> str:
    dims = ",".join(
        "-" if shard is None else f"{shard.dim}/{value.ndim}" for value, shard in zip(args, shards, strict=True)
    )
    # How a dim is cut matters: halves may be independent where neighbours aren't.
    kinds = sorted({part for shard in shards if shard is not None for part in _tried_split(shard.split, shard).parts})
    return f"{function.__module__}.{function.__qualname__}({dims}) {kinds}"


def _tried(function: Any, args: tuple[Any, ...], shards: list[Shard | None], degree: int) -> tuple[int, ...] | None:
    reference = next(shard for shard in shards if shard is not None)
    split = _tried_split(reference.split, reference, degree)
    try:
        with apart(), torch.enable_grad():
            return _Trial(function, args, shards, split, degree).dims()
    except Exception:
        # Whatever a stranger's function does with made-up numbers: it is not known to work on shards.
        return None


class _Trial:
    """One function on random whole inputs, and on each rank's shares of them."""

    def __init__(
        self, function: Any, args: tuple[Any, ...], shards: list[Shard | None], split: Split, degree: int
    ) -> None:
        self.function, self.shards, self.split, self.degree = function, shards, split, degree
        generator = torch.Generator().manual_seed(0)
        self.args = [_made_up(value, shard, split, generator) for value, shard in zip(args, shards, strict=True)]
        self.generator = generator

    def dims(self) -> tuple[int, ...] | None:
        """Give the sharded dim of each result, or None."""
        whole = self._run(self.args)
        by_rank = [self._run(self._shares(rank)) for rank in range(self.degree)]
        dims = []
        for number, (result, _) in enumerate(whole):
            dim = self._dim_of(result, [outs[number][0] for outs in by_rank])
            if dim is None:
                return None
            dims.append(dim)
        return tuple(dims) if self._same_grads(whole, dims) else None

    def _run(self, args: list[Any]) -> list[tuple[Tensor, list[Any]]]:
        leaves = [value.detach().requires_grad_() if _is_float(value) else value for value in args]
        results = apply_function(self.function, *leaves)
        return [(result, leaves) for result in (results if isinstance(results, tuple) else (results,))]

    def _shares(self, rank: int) -> list[Any]:
        return [
            value if shard is None else take(value, shard.dim, self.split, rank).contiguous()
            for value, shard in zip(self.args, self.shards, strict=True)
        ]

    def _dim_of(self, whole: Tensor, by_rank: list[Tensor]) -> int | None:
        if self._adds_up(whole, by_rank):
            return _ADDS_UP
        for dim in range(whole.ndim):
            if whole.shape[dim] == self.split.total and all(
                _close(take(whole, dim, self.split, rank), local) for rank, local in enumerate(by_rank)
            ):
                return dim
        return None

    def _adds_up(self, whole: Tensor, by_rank: list[Tensor]) -> bool:
        alike = whole.is_floating_point() and all(local.shape == whole.shape for local in by_rank)
        return alike and bool(whole.any()) and _close(whole, torch.stack(by_rank).sum(0))

    def _same_grads(self, whole: list[tuple[Tensor, list[Any]]], dims: list[int]) -> bool:
        seeds = [torch.randn(result.shape, dtype=result.dtype, generator=self.generator) for result, _ in whole]
        leaves = [leaf for leaf in whole[0][1] if _is_float(leaf)]
        expected = _grads([result for result, _ in whole], leaves, seeds)
        found = []
        for rank in range(self.degree):
            outs = self._run(self._shares(rank))
            parts = [
                seed if dim == _ADDS_UP else take(seed, dim, self.split, rank).contiguous()
                for seed, dim in zip(seeds, dims, strict=True)
            ]
            found.append(_grads([out for out, _ in outs], [leaf for leaf in outs[0][1] if _is_float(leaf)], parts))
        shards = [shard for value, shard in zip(self.args, self.shards, strict=True) if _is_float(value)]
        return all(
            self._same_grad(grad, [each[number] for each in found], shards[number])
            for number, grad in enumerate(expected)
        )

    def _same_grad(self, whole: Tensor | None, by_rank: list[Tensor | None], shard: Shard | None) -> bool:
        given = [grad for grad in by_rank if grad is not None]
        if whole is None or len(given) < len(by_rank):
            return whole is None and not given
        if shard is None:
            return _close(whole, torch.stack(given).sum(0))
        return all(_close(take(whole, shard.dim, self.split, rank), grad) for rank, grad in enumerate(given))


def _grads(results: list[Tensor], leaves: list[Tensor], seeds: list[Tensor]) -> tuple[Tensor | None, ...]:
    return torch.autograd.grad(results, leaves, seeds, allow_unused=True)


def _made_up(value: Any, shard: Shard | None, split: Split, generator: torch.Generator) -> Any:
    if not isinstance(value, Tensor):
        return value
    shape = list(global_shape(value))
    if shard is not None:
        shape[shard.dim] = split.total
    if value.is_floating_point():
        return torch.randn(shape, dtype=torch.float64, generator=generator)
    return torch.zeros(shape, dtype=value.dtype)


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    return bool((a - b).abs().max() <= _TRIAL_ERROR * (1.0 + a.abs().max()))
