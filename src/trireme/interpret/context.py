"""Context parallelism: every rank runs the module's own code on its positions of the sequence.

Parameters are whole on every rank. A whole tensor's gradient is a part of the true one, and the ranks' parts add up
to it; so do those of the parameters, which the caller sums. The loss that user code computes is that of the whole
sequence on every rank; ``ContextBinding.part`` gives what a rank has to differentiate.

Integers that the caller gives (tokens, labels, positions, documents) stay whole, for they are small and what is
worked out from them (masks, shifted labels) is then exact without a word between ranks. They are cut where they
become vectors.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from trireme.errors import LayoutError
from trireme.interpret.call import Call
from trireme.interpret.collective import CollectiveCount, Line
from trireme.interpret.context_table import CONTEXT_COMPARES, CONTEXT_RULES
from trireme.interpret.declared import declaration_of
from trireme.interpret.interpreter import Active, Interpreter, check_first_alone, writes_into_shard
from trireme.interpret.sequence_collective import gather_positions, sum_parts, take_positions
from trireme.interpret.sequence_split import SequenceName, balanced_split, runs_split
from trireme.interpret.split import CannotSplitError, Shard, Split
from trireme.interpret.tensor_state import acting_for, map_tensors, shard_of, tensors_in, with_shard
from trireme.interpret.torch_private import DisableTorchFunction
from trireme.words import say

ContextKind = Literal["allgather", "ring", "ulysses"]
"""How attention sees the other ranks' positions: keys gathered, keys passed round, heads exchanged for positions."""

_SEQUENCE = "_trireme_sequence"
_LOOKUPS = frozenset({F.embedding, Tensor.__getitem__})


class ContextInterpreter(Interpreter):
    """The rules of a cut sequence on one rank.

    Attributes:
        kind: How attention sees the other ranks' positions.
        balanced: Whether each rank has a run of positions from the head and one from the tail.
    """

    axis = "cp"
    defers_sums = False

    def __init__(
        self, line: Line, *, kind: ContextKind, balanced: bool, notice: Callable[[str], None] = warnings.warn
    ) -> None:
        super().__init__(line, opaque={}, notice=notice)
        self.kind = kind
        self.balanced = balanced

    def split_for(self, length: int) -> Split:
        """Give the cut of a sequence.

        Raises:
            LayoutError: Some rank would have no position.
        """
        degree = self.line.degree
        if length < degree:
            raise LayoutError("interpret.short_sequence", length=length, degree=degree)
        return (balanced_split if self.balanced and length >= 2 * degree else runs_split)(length, degree)

    def cut(self, tensor: Tensor, dim: int, name: str) -> Tensor:
        """Give this rank's positions of a whole tensor."""
        split = self.split_for(tensor.shape[dim])
        local = take_positions(tensor, dim, split, self.line.rank).clone(memory_format=torch.contiguous_format)
        return with_shard(local, Shard(dim=dim, split=split, sources=frozenset({SequenceName(name)})))

    def _meet(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        result = super()._meet(func, args, kwargs)
        if isinstance(result, Tensor) and not result.is_floating_point():
            self._follow(args, result)
        return result

    def _follow(self, args: tuple[Any, ...], result: Tensor) -> None:
        """Know the sequence again in integers that are made from others."""
        if shard_of(result) is not None or hasattr(result, _SEQUENCE):
            return
        for tensor in tensors_in(args):
            found = getattr(tensor, _SEQUENCE, None)
            if found is not None and tensor.ndim == result.ndim and result.shape[found[0]] > 1:
                setattr(result, _SEQUENCE, found)
                return

    def _by_rule(self, call: Call) -> Any:
        call = self._with_cut_lookup(call)
        cut = [tensor for tensor in tensors_in(call.args, call.kwargs) if shard_of(tensor) is not None]
        if not cut:
            return NotImplemented
        found = CONTEXT_RULES.get(call.function)
        if found is None:
            return self._declared(call)

        def rule(call: Call) -> Any:
            check_first_alone(call, lambda each: shard_of(each) is not None, CONTEXT_COMPARES)
            return found(call)

        try:
            return rule(call)
        except CannotSplitError as error:
            if len(cut) < 2 or writes_into_shard(call):
                raise
            return self._with_one_cut(call, rule, cut, error)

    def _declared(self, call: Call) -> Any:
        found = declaration_of(call.function)
        if found is None or found.head_dim is None:
            return super()._declared(call)
        # It asks for itself how its arguments are cut, and calls what rules know.
        with self:
            return call.function.__wrapped__(*call.args, **call.kwargs)  # type: ignore[attr-defined]

    def _with_one_cut(self, call: Call, rule: Callable[[Call], Any], cut: list[Tensor], error: CannotSplitError) -> Any:
        """Try again with one operand cut and the others gathered: queries against all keys, weights against values."""
        gathered: dict[int, Tensor] = {}
        for kept in cut[:2]:

            def settled(tensor: Tensor, kept: Tensor = kept) -> Tensor:
                if tensor is kept or shard_of(tensor) is None:
                    return tensor
                if id(tensor) not in gathered:
                    gathered[id(tensor)] = self.gather(tensor)
                return gathered[id(tensor)]

            args, kwargs = map_tensors(call.args, settled), map_tensors(dict(call.kwargs), settled)
            try:
                result = rule(dataclasses.replace(call, args=args, kwargs=kwargs))
            except CannotSplitError:
                continue
            if self.kind != "allgather":
                self.tell(say("interpret.gathered_operand", what=call.name, kind=self.kind))
            return result
        raise error

    def _with_cut_lookup(self, call: Call) -> Call:
        """Cut the tokens where they are looked up in a table."""
        if call.function not in _LOOKUPS:
            return call
        args = call.args if len(call.args) > 1 else (call.get(0, "input"), call.get(1, "weight"), *call.args[2:])
        place = 0 if call.function is F.embedding else 1
        ids, table = args[place], args[1 - place]
        found = getattr(ids, _SEQUENCE, None) if isinstance(ids, Tensor) else None
        learned = call.function is F.embedding or (table.is_floating_point() and table.requires_grad)
        if found is None or shard_of(ids) is not None or not learned:
            return call
        changed = list(args)
        changed[place] = self.cut(ids, *found)
        kwargs = {name: value for name, value in call.kwargs.items() if name not in ("input", "weight")}
        return dataclasses.replace(call, args=tuple(changed), kwargs=kwargs)

    def spread(self, value: Any) -> Any:
        """Let a whole tensor meet shards as it is: its gradient may be partial."""
        return value

    def share(self, tensor: Tensor, dim: int, split: Split) -> Tensor:
        """Give this rank's positions of a whole tensor."""
        return take_positions(tensor, dim, split, self.line.rank)

    def sum_partial(self, tensor: Tensor) -> Tensor:
        """Sum what each rank computed from its positions."""
        return sum_parts(tensor, self.line)

    def sum_products(self, tensor: Tensor, operands: Sequence[Tensor]) -> Tensor:
        """Sum what each rank computed from its positions."""
        return self.sum_partial(tensor)

    def gather(self, tensor: Tensor) -> Tensor:
        """Make a tensor whole; whole ones pass."""
        shard = shard_of(tensor)
        return tensor if shard is None else gather_positions(tensor, shard.dim, shard.split, self.line)


def mark_sequences(
    interpreter: ContextInterpreter, batch: Mapping[str, Any], *, sequence_dims: Mapping[str, int | None] | None = None
) -> dict[str, Any]:
    """Say which dims are positions: integers stay whole and known as such, vectors are cut.

    Raises:
        LayoutError: Nothing is a sequence, or one has fewer positions than there are ranks.
    """
    given = sequence_dims or {}
    dims = {name: given[name] if name in given else _sequence_dim(value) for name, value in batch.items()}
    if all(dim is None for dim in dims.values()):
        raise LayoutError("interpret.no_sequence", names=", ".join(batch), degree=interpreter.line.degree)
    return {name: _marked_input(interpreter, value, dims[name], name) for name, value in batch.items()}


def _marked_input(interpreter: ContextInterpreter, value: Any, dim: int | None, name: str) -> Any:
    if dim is None:
        return value
    with acting_for(interpreter.axis), DisableTorchFunction():
        if value.is_floating_point():
            return interpreter.cut(value, dim % value.ndim, name)
        interpreter.split_for(value.shape[dim])
        marked = value.view_as(value)
        setattr(marked, _SEQUENCE, (dim % value.ndim, name))
        return marked


class ContextBinding:
    """Context parallelism of one rank, for as long as its model lives; parameters need no preparation.

    Attributes:
        interpreter: The one that meets every call made in ``active()``.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        kind: ContextKind = "allgather",
        balanced: bool = True,
        count: CollectiveCount | None = None,
        notice: Callable[[str], None] = warnings.warn,
    ) -> None:
        group = dist.group.WORLD if group is None else group
        line = Line(
            rank=dist.get_rank(group),
            degree=dist.get_world_size(group),
            group=group,
            count=count or CollectiveCount(),
        )
        self.interpreter = ContextInterpreter(line, kind=kind, balanced=balanced, notice=notice)

    @property
    def count(self) -> CollectiveCount:
        """The collectives so far, those of backward too."""
        return self.interpreter.line.count

    @property
    def notices(self) -> tuple[str, ...]:
        """What had to be gathered so far, each once."""
        return tuple(self.interpreter.notices)

    def active(self) -> Active:
        """Give the context to run the module and its loss in; enter it before that of tensor parallelism.

        Entering again inside (a block, recomputation) costs next to nothing.
        """
        return self.interpreter.active()

    def batch(
        self, batch: Mapping[str, Any], *, sequence_dims: Mapping[str, int | None] | None = None
    ) -> dict[str, Any]:
        """Say which dims of a batch, the same on every rank, are positions; cut what holds vectors of them.

        Args:
            batch: Tensors with samples first. Unless ``sequence_dims`` says otherwise, dim 1 of integers and of
                ``[B, T, D]`` floats are positions.
            sequence_dims: Dim of positions by name; None where there is none.

        Raises:
            LayoutError: Nothing in it is a sequence, or one has fewer positions than there are ranks.
        """
        if self.interpreter.line.degree == 1:
            return dict(batch)
        return mark_sequences(self.interpreter, batch, sequence_dims=sequence_dims)

    def part(self, loss: Tensor) -> Tensor:
        """Give what this rank has to differentiate of a loss; over the ranks these add up to it.

        Gradients of parameters are then sums over this rank's positions, to be summed over the ranks.
        """
        with acting_for("cp"), DisableTorchFunction():
            return loss / self.interpreter.line.degree if shard_of(loss) is None else loss.sum()

    def whole(self, value: Any) -> Any:
        """Give outputs with every cut sequence among them gathered."""
        with acting_for("cp"), DisableTorchFunction():
            return map_tensors(value, self.interpreter.gather)


def _sequence_dim(value: Any) -> int | None:
    if not isinstance(value, Tensor) or value.ndim < 2 or value.dtype.is_complex:
        return None
    if value.is_floating_point():
        return 1 if value.ndim == 3 else None
    return 1
