"""Run a module's own code on local shards: every torch call is met by the rule for its function.

User code sees global sizes, so literals such as ``view(B, T, heads, width)`` stay valid. A whole tensor is the same
on every rank and has a complete gradient; a sharded one holds this rank's share of both. Wherever a whole tensor
meets shards it goes through ``spread``, so gradients become complete again.

Interpreters of several axes may be entered one inside the other. The inner one is asked first and calls through to
the outer one, so that it too sees sizes that are global on the outer axis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from trireme.errors import LayoutError
from trireme.interpret import attention, owed
from trireme.interpret.call import Call
from trireme.interpret.collective import Line, gather, parameter_with_kept, spread, sum_partial, take
from trireme.interpret.declared import declaration_of
from trireme.interpret.opaque import OpaqueDims, apply_opaque, watched_functions
from trireme.interpret.reuse import Reuse
from trireme.interpret.split import CannotSplitError, Shard, Split
from trireme.interpret.table import COMPARES, DECIDES, RULES
from trireme.interpret.tensor_state import (
    acting_for,
    is_owed,
    map_tensors,
    origin_of,
    shard_of,
    sources_of,
    tensors_in,
    total_of,
    with_num_tables,
    with_owed,
    with_shard,
    with_total,
)
from trireme.interpret.token_shard import TokenPlace, Tokens, is_token_shard
from trireme.interpret.torch_private import DisableTorchFunction, apply_function, is_met_by
from trireme.interpret.unknown import assuming
from trireme.words import say

_IN_PLACE = frozenset(
    {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ior__", "__iand__", "__set__"}
)


class Decider(Protocol):
    """What planning adds: it chooses how parameters are cut, where running finds them cut."""

    def resolve(self, value: Any) -> Any:
        """Give arguments with each parameter that is already decided replaced by its local shard."""

    def share(self, tensor: Tensor, dim: int, split: Split) -> Tensor | None:
        """Cut the parameter behind ``tensor`` like this and give the local shard, or None."""

    def column(self, tensor: Tensor, dim: int) -> Tensor | None:
        """Cut the parameter behind ``tensor`` along ``dim`` as planned for it, or None."""

    def fused(self, tensor: Tensor, dim: int, segments: tuple[int, ...], grain: int) -> Tensor | None:
        """Cut the parameter along ``dim`` within segments, in whole grains, or None."""

    def has_table(self, width: int) -> bool:
        """Whether a table of rows this long is cut by rows."""

    def note_table(self, table: Tensor) -> None:
        """Note that a table is cut by rows."""

    def note_sum(self, names: frozenset[str], result: Tensor) -> None:
        """Note what partial sums a parameter gives."""

    def pays_across(self, shard: Shard) -> bool:
        """Whether what caused a shard is worth collectives along its sharded dim."""

    def follow(self, call: Call, result: Any) -> None:
        """Note which parameter a plain view shows."""


class Interpreter(TorchFunctionMode):
    """The state of one interpretation on one rank.

    Attributes:
        axis: Whose shards it reads and writes on tensors.
        defers_sums: Whether partial results go on as they are until a step needs their sum.
        line: The ranks of the axis and the count of collectives.
        notices: What had to be gathered, each once.
    """

    axis = "tp"
    defers_sums = True

    def __init__(
        self,
        line: Line,
        *,
        opaque: OpaqueDims,
        decider: Decider | None = None,
        notice: Callable[[str], None],
        keeps_segments: bool = False,
        tokens: Mapping[str, TokenPlace] | None = None,
    ) -> None:
        super().__init__()
        self.line = line
        self.opaque = opaque
        self.decider = decider
        self.keeps_segments = keeps_segments
        self.notices: dict[str, None] = {}
        self._notice = notice
        self.reuse = Reuse()
        self._gathered = Reuse()
        self._open: dict[int, Tensor] = {}
        self.tables: Mapping[int, int] = {}
        self.tokens = Tokens(line=line, places=tokens) if tokens else None
        self._depth = 0
        self._watched = ExitStack()
        self._outer: Callable[..., Any] = apply_function

    def __enter__(self) -> Interpreter:
        if self._depth == 0:
            self._outer = self._watched.enter_context(watched_functions(self))
        self._depth += 1
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._depth -= 1
        if self._depth == 0:
            # After a failure ranks may not be at the same place; a stage that is left early has not failed.
            if error[0] is None or not issubclass(error[0], Exception):
                with acting_for(self.axis):
                    self._settle()
            self._open.clear()
            self._watched.close()
            self.reuse.forget()
            self._gathered.forget()
            if self.tokens is not None:
                self.tokens.forget()

    def active(self) -> Active:
        """Give a context in which calls are met; one inside another costs next to nothing."""
        return Active(self)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        with acting_for(self.axis):
            return self._meet(func, args, kwargs or {})

    def _meet(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.decider is not None:
            args, kwargs = self.decider.resolve(args), self.decider.resolve(dict(kwargs))
        elif self.keeps_segments:
            args, kwargs = map_tensors(args, self._read), map_tensors(dict(kwargs), self._read)
        call = Call(interpreter=self, function=func, args=args, kwargs=kwargs)
        if self.decider is None:
            return self._met(call)
        result = assuming(call, self._met)
        self.decider.follow(call, result)
        return result

    def _met(self, call: Call) -> Any:
        if any(is_owed(tensor) for tensor in tensors_in(call.args, call.kwargs)):
            result = owed.passed_on(call, RULES.get(call.function))
            if result is not NotImplemented:
                return result
            call = self._with_sums(call)
        try:
            result = self._by_rule(call)
        except CannotSplitError as error:
            if self.tokens is not None and any(is_token_shard(each) for each in tensors_in(call.args, call.kwargs)):
                return self._met(self._without_token_shards(call, error))
            result = self._whole(call, error)
        return call.function(*call.args, **call.kwargs) if result is NotImplemented else result

    def _by_rule(self, call: Call) -> Any:
        rule = RULES.get(call.function)
        if self.tokens is not None and declaration_of(call.function) is None:
            check_first_alone(call, is_token_shard, COMPARES)
        if any(shard_of(tensor) for tensor in tensors_in(call.args, call.kwargs)):
            return self._declared(call) if rule is None else rule(call)
        if rule is None or self.decider is None or call.function not in DECIDES:
            return NotImplemented
        try:
            return rule(call)
        except CannotSplitError as error:
            if error.sources:
                raise
            return NotImplemented

    def _declared(self, call: Call) -> Any:
        found = declaration_of(call.function)
        if found is None:
            raise call.refuse(call.args, call.kwargs)
        if found.head_dim is not None:
            return attention.declared(call, found.head_dim)
        if found.in_torch is None:
            raise call.refuse(call.args, call.kwargs)
        with self:
            return found.in_torch(*call.args, **call.kwargs)

    def _without_token_shards(self, call: Call, error: CannotSplitError) -> Call:
        """Gather positions where a rule can't keep them cut; channels may stay so."""
        names = ", ".join(sorted(error.sources))
        if is_token_shard(call.args[0] if call.args else None) and writes_into_shard(call):
            raise LayoutError("interpret.in_place", what=call.name, names=names)
        self.tell(say("interpret.gathered", what=call.name, names=names))
        args, kwargs = (map_tensors(each, self._without_tokens) for each in (call.args, dict(call.kwargs)))
        return replace(call, args=args, kwargs=kwargs)

    def _without_tokens(self, tensor: Tensor) -> Tensor:
        assert self.tokens is not None
        return self.tokens.gather_for_all(tensor) if is_token_shard(tensor) else tensor

    def positions_met(self, tensor: Tensor) -> Tensor:
        """Give all positions of a tensor, to be read by shards of channels; others pass."""
        if self.tokens is None or not is_token_shard(tensor):
            return tensor
        # Gradients of what is gathered so are summed over ranks already: it is its own spread.
        return self.reuse.of(self.tokens.gather(tensor), lambda whole: whole)

    def spread_together(self, values: Sequence[Any]) -> list[Any]:
        """Let whole tensors meet shards with one all-reduce for all of them."""
        learned = [place for place, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
        if self.tokens is None or len(learned) < 2 or not torch.is_grad_enabled():
            return [self.spread(value) for value in values]
        flat = self.spread(torch.cat([values[place].flatten() for place in learned]))
        pieces = flat.split([values[place].numel() for place in learned])
        result = list(values)
        for place, piece in zip(learned, pieces, strict=True):
            result[place] = piece.view(values[place].shape)
        return result

    def _whole(self, call: Call, error: CannotSplitError) -> Any:
        if self.decider is not None:
            raise error
        names = ", ".join(sorted(error.sources))
        if writes_into_shard(call):
            raise LayoutError("interpret.in_place", what=call.name, names=names)
        self.tell(say("interpret.gathered", what=call.name, names=names))
        return call.function(*map_tensors(call.args, self.gather), **map_tensors(dict(call.kwargs), self.gather))

    def tell(self, sentence: str) -> None:
        """Say something once."""
        if sentence not in self.notices:
            self.notices[sentence] = None
            self._notice(sentence)

    def spread(self, value: Any) -> Any:
        """Let a whole tensor meet shards; one that is met several times pays its all-reduce once."""
        if not isinstance(value, Tensor) or not (value.requires_grad and torch.is_grad_enabled()):
            return value
        return self.reuse.of(value, self._spread)

    def _spread(self, value: Tensor) -> Tensor:
        return spread(value, self.line)

    def _read(self, tensor: Tensor) -> Tensor:
        """Give a parameter as it may be read; one that keeps segments needs its gradient put right."""
        shard = shard_of(tensor)
        differentiates = tensor.requires_grad and torch.is_grad_enabled()
        if shard is None or not (shard.split.keeps_some and tensor.is_leaf and differentiates):
            return tensor
        return self.reuse.of(tensor, lambda kept: with_shard(self._with_kept(kept, shard), shard))

    def _with_kept(self, tensor: Tensor, shard: Shard) -> Tensor:
        return parameter_with_kept(tensor, shard.dim, shard.split, self.line)

    def share(self, tensor: Tensor, dim: int, split: Split) -> Tensor:
        """Give this rank's share of a whole tensor; a parameter nobody has decided on is cut for good."""
        if self.decider is not None and origin_of(tensor) is not None:
            decided = self.decider.share(tensor, dim, split)
            if decided is not None:
                return decided
        share = None if self.tokens is None else self.tokens.share(tensor, dim, split)
        return take(self.spread(tensor), dim, split, self.line.rank) if share is None else share

    def owe(self, tensor: Tensor) -> Tensor:
        """Give a summand whose sum is made once something needs it."""
        if not self.defers_sums or self.tokens is not None:
            return self.sum_partial(tensor)
        self._open[id(tensor)] = tensor
        return with_owed(tensor)

    def owe_row(self, tensor: Tensor) -> Tensor:
        """Give rows of one table, to be summed once those of all tables of this width are added to them."""
        return self.owe_tables(tensor, 1)

    def owe_tables(self, tensor: Tensor, count: int) -> Tensor:
        """Give the added rows of ``count`` tables, as their sum if there are no more tables."""
        if count >= self.tables.get(tensor.shape[-1], 1):
            return self.sum_partial(tensor)
        return with_num_tables(self.owe(tensor), count)

    def hand_on(self, tensor: Tensor) -> None:
        """Note that the sum is owed of what was made of a summand."""
        self._open.pop(id(tensor), None)

    def _with_sums(self, call: Call) -> Call:
        if _writes_in_place(call) and call.args and is_owed(call.args[0]):
            self._sum_in_place(call.args[0])
        args, kwargs = map_tensors(call.args, self.summed), map_tensors(dict(call.kwargs), self.summed)
        return replace(call, args=args, kwargs=kwargs)

    def summed(self, tensor: Tensor) -> Tensor:
        """Give the sum of the ranks' summands, made once; other tensors pass."""
        if not is_owed(tensor):
            return tensor
        total = total_of(tensor)
        if total is None or (torch.is_grad_enabled() and tensor.requires_grad and not total.requires_grad):
            total = self.sum_partial(tensor)
            with_total(tensor, total)
            self.hand_on(tensor)
        return total

    def _sum_in_place(self, tensor: Tensor) -> None:
        """Add up a summand where it lies: whoever holds it goes on with it."""
        if total_of(tensor) is not None or tensor._is_view():
            raise LayoutError("interpret.in_place_sum")
        with torch.inference_mode(tensor.is_inference()), torch.no_grad(), DisableTorchFunction():
            lying = tensor.detach()
            lying.copy_(self.line.all_reduce(lying.clone(memory_format=torch.contiguous_format), where="forward"))
        with_owed(tensor, owed=False)
        self.hand_on(tensor)

    def _settle(self) -> None:
        """Add up what is left when the interpreter is left: outputs, and what nothing has read."""
        for tensor in list(self._open.values()):
            self._sum_in_place(tensor)

    def sum_partial(self, tensor: Tensor) -> Tensor:
        """Sum what each rank computed from its shards."""
        return sum_partial(tensor, self.line)

    def sum_rows(self, tensor: Tensor, table: Tensor) -> Tensor:
        """Sum looked up rows: to all once other tables' are added, or each rank its share of the positions."""
        if self.decider is not None:
            self.decider.note_table(table)
            self.decider.note_sum(sources_of(table), tensor)
        scattered = None if self.tokens is None else self.tokens.scatter(sources_of(table), tensor)
        return self.owe_row(tensor) if scattered is None else scattered

    def sum_products(self, tensor: Tensor, operands: Sequence[Tensor]) -> Tensor:
        """Sum what the ranks have of a product: to all, or each its share of the positions."""
        names = min((sources_of(each) for each in reversed(operands) if sources_of(each)), key=len)
        if self.decider is not None:
            self.decider.note_sum(names, tensor)
        scattered = None if self.tokens is None else self.tokens.scatter(names, tensor)
        return self.sum_partial(tensor) if scattered is None else scattered

    def gather(self, tensor: Tensor) -> Tensor:
        """Make a tensor whole; whole ones pass."""
        shard = shard_of(tensor)
        if shard is None:
            return self.summed(tensor)
        if self.tokens is not None and is_token_shard(tensor):
            return self.tokens.gather_for_all(tensor)
        if tensor.requires_grad and not torch.is_grad_enabled():
            return gather(tensor, shard.dim, shard.split, self.line)
        return self._gathered.of(tensor, lambda local: gather(local, shard.dim, shard.split, self.line))

    def apply_function(self, function: Any, args: tuple[Any, ...]) -> Any:
        """Run an autograd function of the user's, whose inside no rule sees; NotImplemented if nothing is sharded."""
        if not is_met_by(self):
            return NotImplemented
        with acting_for(self.axis):
            return self._meet_function(function, args)

    def _meet_function(self, function: Any, args: tuple[Any, ...]) -> Any:
        if self.decider is not None:
            args = self.decider.resolve(args)
        if any(is_owed(tensor) for tensor in tensors_in(args)):
            args = map_tensors(args, self.summed)
            if not sources_of(args):
                return self._outer(function, *args)
        if not sources_of(args):
            return NotImplemented
        call = Call(interpreter=self, function=_Applied(function, self.apply_outside), args=args, kwargs={})
        try:
            return apply_opaque(call, function, self.opaque)
        except CannotSplitError as error:
            return self._whole(call, error)

    def apply_outside(self, function: Any, *args: Any) -> Any:
        """Run an autograd function as it runs without this interpreter: seen by the one outside, if any."""
        return self._outer(function, *args)


class Active:
    """One entry of an interpreter, which enters only where its calls aren't met yet."""

    __slots__ = ("_entered", "_interpreter", "_mark")

    def __init__(self, interpreter: Interpreter) -> None:
        self._interpreter = interpreter
        self._entered = False
        self._mark = 0

    def __enter__(self) -> Interpreter:
        self._mark = self._interpreter.reuse.mark()
        self._entered = not is_met_by(self._interpreter)
        if self._entered:
            self._interpreter.__enter__()
        return self._interpreter

    def __exit__(self, *error: Any) -> None:
        # What was made inside stays alive no longer than that: recomputation spares no memory otherwise.
        self._interpreter.reuse.forget(self._mark)
        if self._entered:
            self._interpreter.__exit__(*error)


class _Applied:
    """An autograd function as something to call, under its own name."""

    def __init__(self, function: Any, apply: Callable[..., Any]) -> None:
        self.function, self.apply = function, apply
        self.__name__: str = function.__qualname__

    def __call__(self, *args: Any) -> Any:
        return self.apply(self.function, *args)


def _writes_in_place(call: Call) -> bool:
    name = call.name
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))


def check_first_alone(call: Call, is_cut: Callable[[Any], bool], compares: Collection[Any]) -> None:
    """Refuse a call with cut positions elsewhere than in its first tensor, if its rule looks at that one alone."""
    if call.function in compares:
        return
    tensors = list(tensors_in(call.args, call.kwargs))
    if any(is_cut(each) for each in tensors if each is not tensors[0]):
        raise call.refuse(call.args, call.kwargs)


def writes_into_shard(call: Call) -> bool:
    """Whether a call changes a sharded tensor in place."""
    written = [call.args[0]] if _writes_in_place(call) and call.args else []
    return bool(sources_of(written, call.kwargs.get("out"))) or (call.kwargs.get("inplace") is True)
