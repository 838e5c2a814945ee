"""How the tensors of a forward grow with the batch and the length: three recorded runs held beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from math import log2
from typing import NamedTuple

from trireme.errors import ModelError
from trireme.graph import Load, Rows, count_rows
from trireme.parallel.graph_record import Ran, Record, Seen

_GROWTH: dict[tuple[int, int], Rows] = {
    (0, 0): "once",
    (1, 0): "seqs",
    (0, 1): "positions",
    (1, 1): "tokens",
    (0, 2): "position_pairs",
    (1, 2): "pairs",
}
"""By the powers of the number of sequences and of their length."""


class Size(NamedTuple):
    """Rows of a sort, and how many numbers each has."""

    rows: Rows
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """A forward of some sequences, of twice as many, and of sequences twice as long."""

    base: Record
    wider: Record
    longer: Record
    load: Load
    is_fixed: bool
    _storages: dict[int, tuple[int, int]]

    @staticmethod
    def of(base: Record, wider: Record, longer: Record, *, load: Load, model: str, is_fixed: bool = False) -> Runs:
        """Lay three runs side by side.

        Raises:
            ModelError: They aren't the same calls: what runs depends on the batch.
        """
        storages: dict[int, tuple[int, int]] = {}
        for other in (wider, longer):
            if [ran.name for ran in other.ran] != [ran.name for ran in base.ran]:
                raise ModelError("capture.other_calls", model=model, calls=len(base.ran), others=len(other.ran))
        rows = zip(base.ran, wider.ran, longer.ran, strict=True)
        for first, second, third in chain(rows, [_outputs(base, wider, longer)]):
            for group in zip(_storages(first), _storages(second), _storages(third), strict=False):
                storages.setdefault(group[0], group[1:])
        return Runs(base=base, wider=wider, longer=longer, load=load, is_fixed=is_fixed, _storages=storages)

    def memory(self, storage: int) -> Size:
        """Give the size of a piece of memory."""
        wider, longer = self._storages.get(storage, (storage, storage))
        return self.grown(
            self.base.memory[storage].numel,
            self.wider.memory[wider].numel if wider in self.wider.memory else 0,
            self.longer.memory[longer].numel if longer in self.longer.memory else 0,
        )

    def view(self, call: int, place: int, *, of: int = 1) -> Size:
        """Give the size of the view that a call takes, in groups of ``of`` numbers."""
        return self.grown(*(_numel(run.ran[call].inputs[place]) // of for run in (self.base, self.wider, self.longer)))

    def made(self, call: int, *, of: int = 1) -> Size:
        """Give the size of what a call gives, in groups of ``of`` numbers."""
        return self.grown(*(_numel(run.ran[call].outputs[0]) // of for run in (self.base, self.wider, self.longer)))

    def grown(self, base: int, wider: int, longer: int) -> Size:
        """Say which sort of rows grows like this; sizes between two sorts count as the nearest, rounded up."""
        powers = (_power(base, wider, most=1), _power(base, longer, most=2))
        rows = _GROWTH.get(powers, "once")
        if self.is_fixed and rows == "seqs" and base % (self.load.seqs * self.load.seq_len) == 0:
            rows = "tokens"
        return Size(rows, -(-base // count_rows(rows, self.load)))


def _outputs(*records: Record) -> tuple[Ran, ...]:
    return tuple(Ran(name="", module="", options=(), inputs=record.outputs, outputs=()) for record in records)


def _storages(ran: Ran) -> list[int]:
    return [seen.storage for seen in (*ran.inputs, *ran.outputs)] + ran.kept


def _numel(seen: Seen) -> int:
    return seen.numel


def _power(base: int, doubled: int, *, most: int) -> int:
    if base <= 0 or doubled <= 0:
        return 0
    return max(0, min(most, round(log2(doubled / base))))
