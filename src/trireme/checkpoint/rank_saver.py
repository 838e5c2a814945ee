"""One rank's part of saving: a snapshot into the arena, and a writer that takes it from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trireme.checkpoint.arena import Arena
from trireme.checkpoint.deal import Part
from trireme.checkpoint.order import ArenaPart, WriteOrder
from trireme.checkpoint.piece import StatePiece, copy_block
from trireme.checkpoint.shard import bytes_of
from trireme.checkpoint.writer_link import Answer, InlineWriter, WriterLink, place_parts
from trireme.errors import CheckpointError

if TYPE_CHECKING:
    import torch

_ORDER_BYTES = 1 << 20
_ORDER_PART_BYTES = 512
"""About what an order takes in the arena, and each block in it."""


class RankSaver:
    """Takes snapshots and has them written.

    With ``background`` a save costs the training one copy, into memory that was made before; a process of its own
    writes it. Without, or where that memory isn't to be had, this process writes the live values before it goes on.
    """

    def __init__(self, *, device: torch.device | None = None, background: bool = True) -> None:
        self.background = background
        self._device = device
        self._arena = Arena(device=device) if background else None
        self._link = WriterLink(self._arena) if self._arena is not None else None
        self._inline = InlineWriter()
        self._answers: list[Answer] = []

    @property
    def busy(self) -> bool:
        """Return whether an order is on its way."""
        return self._link is not None and self._link.pending is not None

    @property
    def writer_pid(self) -> int | None:
        """Return the process that writes, if there is one."""
        return self._link.pid if self._link is not None else None

    def warm(self, *, value_bytes: int, num_parts: int) -> None:
        """Make memory and writer ready for saves of about this size.

        Raises:
            CheckpointError: The machine hasn't that much memory free.
            OSError: No process can be started.
        """
        if self._link is not None and self._arena is not None:
            self._arena.reserve(value_bytes + _ORDER_BYTES + num_parts * _ORDER_PART_BYTES)
            self._link.warm()

    def take(self, pieces: Mapping[str, StatePiece], parts: Sequence[Part], *, order: WriteOrder) -> str | None:
        """Copy this rank's parts of the state and give the order to write them.

        When this returns, the live tensors may change. Returns why the save is not in the background although it
        was to be; None as a rule.
        """
        placed, end = place_parts(_arena_parts(parts))
        order = replace(order, parts=placed)
        problem = None
        if self._link is not None and self._arena is not None:
            try:
                self._arena.reserve(end + self._link.order_bytes(order))
                self._fill(pieces, parts, placed)
                self._link.give(order)
                return None
            except (CheckpointError, OSError) as error:
                self._link.pending = None
                problem = str(error)
        source = _LiveSource(pieces, {(part.name, part.ranges): part for part in parts})
        self._answers += self._inline.carry_out(order, source)
        return problem

    def hear(self, *, wait_s: float = 0.0) -> list[Answer]:
        """Return what was answered since this was last asked."""
        answers, self._answers = self._answers, []
        return answers + (self._link.hear(wait_s=wait_s) if self._link is not None else [])

    def close(self) -> None:
        """End the writer and give the memory back; what was on its way is given up."""
        if self._link is not None:
            self._link.close()
        if self._arena is not None:
            self._arena.close()

    def _fill(self, pieces: Mapping[str, StatePiece], parts: Sequence[Part], placed: Sequence[ArenaPart]) -> None:
        import torch

        from trireme.mesh import synchronize

        assert self._arena is not None
        room = self._arena.bytes
        with torch.no_grad():
            for part, place in zip(parts, placed, strict=True):
                into = room[place.offset_bytes : place.offset_bytes + place.size_bytes]
                copy_block(pieces[part.source], part.ranges, into)
        if self._device is not None:
            synchronize(self._device)


class _LiveSource:
    """Gives the bytes of a block straight from the live values, one block at a time."""

    def __init__(self, pieces: Mapping[str, StatePiece], parts: Mapping[object, Part]) -> None:
        self._pieces = pieces
        self._parts = parts

    def __call__(self, place: ArenaPart) -> memoryview:
        import torch

        part = self._parts[place.name, place.ranges]
        values = torch.empty(place.size_bytes, dtype=torch.uint8)
        with torch.no_grad():
            copy_block(self._pieces[part.source], part.ranges, values)
        return bytes_of(values)


def _arena_parts(parts: Sequence[Part]) -> list[ArenaPart]:
    """Name the entries: as the tensor where a file has one block of it, numbered where it has more."""
    of_name = Counter(part.name for part in parts)
    seen: Counter[str] = Counter()
    named = []
    for part in parts:
        entry = part.name if of_name[part.name] == 1 else f"{part.name}#{seen[part.name]}"
        seen[part.name] += 1
        named.append(
            ArenaPart(
                name=part.name,
                entry=entry,
                dtype=part.dtype,
                ranges=part.ranges,
                frozen=part.frozen,
                offset_bytes=0,
            )
        )
    return named
