"""The graph of any module, as the planner sees it: one forward that computes nothing, at three sizes of batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.graph import Block, Load, ModelGraph, Op, Param, Stack, Tie
from trireme.parallel.block import find_blocks
from trireme.parallel.graph_ops import Section
from trireme.parallel.graph_record import Call, Ran, Record, record
from trireme.parallel.graph_size import Runs
from trireme.parallel.graph_tensor import PRODUCTS, Kinds, Naming
from trireme.parallel.trace import line_in
from trireme.parallel.tracing_private import DEPENDS_ON_DATA

Batch = Callable[[int, int], Mapping[str, Tensor]]
"""Makes the inputs of a number of sequences of a length."""

_SEQS = 2


def capture_graph(module: nn.Module, batch: Batch, *, call: Call, name: str, family: str, seq_len: int) -> ModelGraph:
    """Give the graph of a module from its code alone; nothing is computed, and the module stays as it is.

    Args:
        module: On any device or meta, in the mode in which it trains.
        batch: Makes inputs; contents don't matter.
        call: How the module is called with them.
        name: What it is called.
        family: What its kind is called.
        seq_len: Length of a sequence in training; inputs that don't change with it have one of their own.

    Raises:
        ModelError: The code asks for values, fails, or runs other calls for another batch.
    """
    half = max(1, seq_len // 2)
    is_fixed = _shapes(batch(_SEQS, half)) == _shapes(batch(_SEQS, 2 * half))
    runs = _runs(module, batch, call=call, name=name, length=half, is_fixed=is_fixed)
    return _Assembly(module, runs, name=name, family=family).graph()


def _shapes(batch: Mapping[str, Any]) -> list[Any]:
    return [getattr(value, "shape", None) for value in batch.values()]


def _runs(module: nn.Module, batch: Batch, *, call: Call, name: str, length: int, is_fixed: bool) -> Runs:
    """Record three runs; where another length makes other calls (a loop over tokens), the one length alone counts."""
    if is_fixed:
        base, wider = _records(module, batch, call, name, ((_SEQS, 2 * length), (2 * _SEQS, 2 * length)))
        load = Load(seqs=_SEQS, seq_len=_tokens_of(module, base) or 2 * length)
        return Runs.of(base, wider, base, load=load, model=name, is_fixed=True)
    sizes = ((_SEQS, length), (2 * _SEQS, length), (_SEQS, 2 * length))
    base, wider, longer = _records(module, batch, call, name, sizes)
    if len(base.ran) != len(longer.ran):
        return _runs(module, batch, call=call, name=name, length=length, is_fixed=True)
    return Runs.of(base, wider, longer, load=Load(seqs=_SEQS, seq_len=length), model=name)


def _tokens_of(module: nn.Module, record: Record) -> int:
    """Rows per sequence of what enters the first block, 0 where it has no such dim."""
    paths = set(find_blocks(module))
    inside = (ran for ran in record.ran if _owner(ran.module, paths))
    shapes = (seen.shape for ran in inside for seen in ran.inputs if seen.storage not in record.params)
    return next((shape[1] for shape in shapes if len(shape) == 3 and shape[0] == _SEQS), 0)


def _records(module: nn.Module, batch: Batch, call: Call, name: str, sizes: Sequence[tuple[int, int]]) -> list[Record]:
    try:
        return [_recorded(module, batch, call, size) for size in sizes]
    except DEPENDS_ON_DATA as error:
        raise ModelError("capture.asks_values", model=name, line=line_in(error)) from error
    except ModelError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ModelError("capture.failed", model=name, reason=reason, line=line_in(error)) from error


def _recorded(module: nn.Module, batch: Batch, call: Call, size: tuple[int, int]) -> Record:
    """In 16 bits, which tells what is in 32 by its code; in 32 where code mixes formats so that 16 don't run."""
    try:
        return record(module, lambda: batch(*size), call=call, dtype=torch.bfloat16)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, DEPENDS_ON_DATA):
            raise
        return record(module, lambda: batch(*size), call=call, dtype=torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """Neighbouring calls of one block (``path``), or between blocks."""

    path: str
    first: int
    calls: tuple[Ran, ...]


class _Assembly:
    """Sections written one by one and put in order."""

    def __init__(self, module: nn.Module, runs: Runs, *, name: str, family: str) -> None:
        self.module, self.runs, self.name, self.family = module, runs, name, family
        self.kinds = Kinds(runs=runs)
        self.paths = set(find_blocks(module))
        self.owners = dict(module.named_modules())
        self.declared: set[int] = set()
        self.aliases: set[str] = set()
        self.ties = {
            alias: names[0]
            for storage, names in runs.base.params.items()
            if storage in runs.base.trained
            for alias in names[1:]
        }
        self.unknown: dict[str, None] = {}
        self.equal: dict[Block, Block] = {}

    def graph(self) -> ModelGraph:
        """Put the graph together."""
        fixed_seq_len = self.runs.load.seq_len if self.runs.is_fixed else None
        stretches = _merged(_stretches(self.runs.base.ran, self.paths))
        last = max((place for place, each in enumerate(stretches) if each.path), default=-1)
        body, tail = stretches[: last + 1], stretches[last + 1 :]
        stacks = self._stacks(body, self._readers(stretches))
        after, head = self._tail(tail)
        stacks[-1] = replace(stacks[-1], after=_joined(stacks[-1].after, after, kind="final"))
        stacks[0] = replace(stacks[0], before=_joined(stacks[0].before, self._never_read(), kind="embedding"))
        outputs = max(self.runs.base.outputs, key=lambda seen: seen.numel)
        classes = outputs.shape[-1] if outputs.shape else 1
        return ModelGraph(
            name=self.name,
            family=self.family,
            architecture=type(self.module).__name__,
            vocab_size=classes,
            max_seq_len=_max_seq_len(self.module),
            stacks=tuple(replace(stack, side="encoder") for stack in stacks) if fixed_seq_len else tuple(stacks),
            head=head,
            loss=self._loss(outputs.storage, classes),
            ties=tuple(Tie(alias=alias, owner=owner) for alias, owner in self.ties.items()),
            omitted=tuple(self.unknown),
            fixed_seq_len=fixed_seq_len,
        )

    def _readers(self, stretches: Sequence[_Stretch]) -> frozenset[int]:
        """Memory that several blocks read: tables, masks."""
        seen: dict[int, str] = {}
        several: set[int] = set()
        for stretch in stretches:
            made = {each.storage for ran in stretch.calls for each in ran.outputs}
            for storage in {each.storage for ran in stretch.calls for each in ran.inputs} - made:
                if stretch.path and seen.setdefault(storage, stretch.path) != stretch.path:
                    several.add(storage)
        return frozenset(several)

    def _write(self, stretch: _Stretch, shared: frozenset[int]) -> Section:
        end = stretch.first + len(stretch.calls)
        later = {seen.storage for ran in self.runs.base.ran[end:] for seen in ran.inputs}
        section = Section(
            path=stretch.path,
            first=stretch.first,
            calls=stretch.calls,
            naming=Naming(kinds=self.kinds, began=stretch.first, shared=shared),
            read_later=frozenset(later | {seen.storage for seen in self.runs.base.outputs}),
            declared=self.declared,
            aliases=self.aliases,
            owners=self.owners,
            ties=self.ties,
        )
        section.write()
        self.unknown |= section.unknown
        return section

    def _stacks(self, body: Sequence[_Stretch], shared: frozenset[int]) -> list[Stack]:
        """Blocks of one container are a stack; what runs between two containers comes before the later one."""
        stacks: list[Stack] = []
        waiting: list[Op] = []
        for stretch in body:
            section = self._write(stretch, shared)
            parent = stretch.path.rpartition(".")[0]
            if not stretch.path:
                waiting += section.ops
            elif stacks and stacks[-1].path == parent:
                rest = Block(kind="final", ops=tuple(waiting))
                stacks[-1] = _longer(stacks[-1], self._equal(section, stretch), stretch.path, rest)
                waiting = []
            else:
                before = Block(kind="embedding", ops=tuple(waiting))
                block = self._equal(section, stretch)
                stacks.append(_stack(parent, before, block, stretch.path, width=self._width(stretch)))
                waiting = []
        if stacks:
            return stacks
        raise ModelError("capture.no_blocks", model=self.name)

    def _equal(self, section: Section, stretch: _Stretch) -> Block:
        """Give equal blocks as one object."""
        ops = (*section.ops, *self._unread(stretch.path))
        block = Block(kind=type(self.module.get_submodule(stretch.path)).__name__, ops=ops)
        return self.equal.setdefault(block, block)

    def _width(self, stretch: _Stretch) -> int:
        """Numbers per token that a block gives."""
        return self.runs.memory(stretch.calls[-1].outputs[0].storage).width

    def _unread(self, path: str) -> Iterator[Op]:
        """Parameters of a block that its forward doesn't read."""
        prefix = f"{path}."
        for storage, names in self.runs.base.params.items():
            if storage in self.runs.base.trained and names[0].startswith(prefix) and storage not in self.declared:
                self.declared.add(storage)
                yield _parameter(names[0].removeprefix(prefix), self.runs.base.shapes[storage])

    def _never_read(self) -> Block:
        """Parameters that nothing reads."""
        ops = [
            _parameter(names[0], self.runs.base.shapes[storage])
            for storage, names in self.runs.base.params.items()
            if storage in self.runs.base.trained and storage not in self.declared
        ]
        return Block(kind="embedding", ops=tuple(ops))

    def _tail(self, tail: Sequence[_Stretch]) -> tuple[Block, Block]:
        """Split what follows the last block at the last product with a matrix of parameters: there the head begins."""
        if not tail:
            return Block(kind="final"), Block(kind="head")
        calls = tuple(ran for stretch in tail for ran in stretch.calls)
        products = [place for place, ran in enumerate(calls) if ran.name in PRODUCTS]
        border = products[-1] if products else len(calls)
        first = tail[0].first
        after = self._write(_Stretch(path="", first=first, calls=calls[:border]), frozenset())
        head = self._write(_Stretch(path="", first=first + border, calls=calls[border:]), frozenset())
        return after.block("final"), head.block("head")

    def _loss(self, storage: int, classes: int) -> Block:
        rows = self.runs.memory(storage).rows
        from trireme.graph import logits_loss

        return logits_loss(classes, rows=rows)


def _stretches(calls: Sequence[Ran], paths: set[str]) -> Iterator[_Stretch]:
    first = 0
    owners = [_owner(ran.module, paths) for ran in calls]
    for index in range(1, len(calls) + 1):
        if index == len(calls) or owners[index] != owners[first]:
            yield _Stretch(path=owners[first], first=first, calls=tuple(calls[first:index]))
            first = index


def _merged(stretches: Iterator[_Stretch]) -> list[_Stretch]:
    """A block that runs more than once is one section (recurrent depth); its later calls cost as its first ones."""
    return list(stretches)


def _owner(module: str, paths: set[str]) -> str:
    """The block in which a module lies, empty if in none."""
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        if ".".join(parts[:count]) in paths:
            return ".".join(parts[:count])
    return ""


def _stack(path: str, before: Block, block: Block, name: str, *, width: int) -> Stack:
    return Stack(path=path, width=width, before=before, blocks=(block,), after=Block(kind="final"), names=(name,))


def _longer(stack: Stack, block: Block, name: str, between: Block) -> Stack:
    after = _joined(stack.after, between, kind="final")
    return replace(stack, blocks=(*stack.blocks, block), names=(*stack.names, name), after=after)


def _joined(first: Block, second: Block, *, kind: str) -> Block:
    return Block(kind=kind, ops=(*first.ops, *second.ops))


def _parameter(name: str, shape: tuple[int, ...]) -> Op:
    owner, _, last = name.rpartition(".")
    return Op(name=owner, kind="parameter", params=(Param(name=last, shape=shape),))


def _max_seq_len(module: nn.Module) -> int | None:
    config: Any = getattr(module, "config", None)
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None
