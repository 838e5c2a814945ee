"""Which recorded steps a tensor's values follow from; what was overwritten since doesn't count."""

from __future__ import annotations

from collections.abc import Iterator

from trireme.interpret.initial_record import Place, Recording, Step, Storage

TRUNCATED = "_no_grad_trunc_normal_"
_FILLS = {"normal_", "uniform_", "zero_", "fill_", "copy_", "orthogonal_", "dirac_", "sparse_"}
OVERWRITES = frozenset({*_FILLS, TRUNCATED})
"""In-place functions whose result doesn't depend on what stood there."""


class History:
    """What a finished recording says of single storages."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._live: dict[tuple[int, int | None], list[tuple[Step, Place]]] = {}

    def live(self, storage: int, *, before: int | None = None) -> list[tuple[Step, Place]]:
        """Give the writes that a storage's values before a step follow from, in order."""
        asked = (storage, before)
        if asked not in self._live:
            self._live[asked] = self._find_live(storage, before)
        return self._live[asked]

    def _find_live(self, storage: int, before: int | None) -> list[tuple[Step, Place]]:
        found = self.recording.storages[storage]
        numbers = [number for number in found.steps if before is None or number < before]
        steps = map(self.recording.steps.__getitem__, numbers)
        writes = [(step, place) for step in steps for place in _to(step, storage)]
        for first in range(len(writes) - 1, -1, -1):
            step, place = writes[first]
            if covers(place, found) and not self.reads_old(step, place):
                return writes[first:]
        return writes

    def reads_old(self, step: Step, place: Place) -> bool:
        """Whether a step computes with what stood where it writes."""
        given = [each for each in step.places() if each.storage == place.storage]
        if step.name in OVERWRITES or "out" in step.kwargs:
            return len(given) > 1
        return bool(given)

    def steps(self, storage: int, *, before: int | None = None) -> list[Step]:
        """Give all steps that a storage's values before a step follow from, in order."""
        found: dict[int, Step] = {}
        self._collect(storage, before, found, set())
        return [found[number] for number in sorted(found)]

    def _collect(self, storage: int, before: int | None, found: dict[int, Step], seen: set[tuple[int, int]]) -> None:
        for step, place in self.live(storage, before=before):
            found[step.index] = step
            for given in step.places():
                if given != place and (given.storage, step.index) not in seen:
                    seen.add((given.storage, step.index))
                    self._collect(given.storage, step.index, found, seen)


def covers(place: Place, storage: Storage) -> bool:
    """Whether a place is all of its storage, each element once."""
    return place.numel == storage.numel and place.dtype == storage.dtype and is_apart(place)


def is_apart(place: Place) -> bool:
    """Whether no two elements of a place lie on one another, dim by dim."""
    reach = 1
    for stride, size in sorted(dims_of(place)):
        if stride < reach:
            return False
        reach = stride * size
    return True


def dims_of(place: Place) -> list[tuple[int, int]]:
    """Give (stride, size) of the dims longer than one."""
    return [(stride, size) for stride, size in zip(place.stride, place.shape, strict=True) if size != 1]


def _to(step: Step, storage: int) -> Iterator[Place]:
    return (place for place in step.written if place.storage == storage)
