"""The ranks of a run as a team: one leads, and what it finds or refuses holds for all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeVar

import torch.distributed as dist

from trireme import __version__
from trireme.errors import LayoutError, TrainError, TriremeError

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """All ranks of the run as one of them sees them; one process alone leads itself."""

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """Whether this rank speaks, writes and decides."""
        return self.rank == 0

    def from_lead(self, find: Callable[[], _T]) -> _T:
        """Return what ``find`` gives on the leading rank, on all; it must pickle.

        Raises:
            TriremeError: It was refused there.
        """
        if self.size == 1:
            return find()
        outcome = _outcome(find) if self.leads else None
        told = self._told(outcome)
        found: _T = _taken(_heard(told) if outcome is None else outcome)
        return found

    def everyone(self, value: _T) -> list[_T]:
        """Return every rank's value, in the order of ranks; it must pickle."""
        if self.size == 1:
            return [value]
        values: list[_T] = [value] * self.size
        dist.all_gather_object(values, value)
        return values

    def lead_first(self, do: Callable[[], _T]) -> _T:
        """Return what ``do`` gives on each rank; others begin when the leading rank is done, with its caches there.

        Raises:
            TriremeError: It was refused on the leading rank, or on this one.
        """
        if self.size == 1:
            return do()
        outcome = _outcome(do) if self.leads else None
        told = self._told(outcome if isinstance(outcome, _Refused) else _Found(value=None))
        if outcome is not None:
            first: _T = _taken(outcome)
            return first
        _taken(_heard(told))
        return do()

    def check_alike(self, settings: str) -> None:
        """Refuse ranks that were started with other settings or another Trireme than the leading one.

        Raises:
            LayoutError: One was; the first that differs is named, with a line that does.
        """
        if self.size == 1:
            return
        own = (__version__, settings)
        everyone: list[tuple[str, str]] = [own] * self.size
        dist.all_gather_object(everyone, own)
        for rank, (version, text) in enumerate(everyone):
            if (version, text) != everyone[0]:
                raise LayoutError("job.unlike_ranks", rank=rank, first=_first_difference(everyone[0], (version, text)))

    def _told(self, outcome: Any) -> Any:
        box = [outcome]
        dist.broadcast_object_list(box, src=0)
        return box[0]


def _first_difference(one: tuple[str, str], other: tuple[str, str]) -> str:
    """Show what differs first: the version, else a line of the settings."""
    if one[0] != other[0]:
        return f"trireme {one[0]} / {other[0]}"
    pairs = zip_longest(one[1].splitlines(), other[1].splitlines(), fillvalue="-")
    mine, theirs = next((mine, theirs) for mine, theirs in pairs if mine != theirs)
    return f"{mine.strip()} / {theirs.strip()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """What the others are told; the rank where it happened raises ``cause`` itself."""

    error: TriremeError
    cause: Exception | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _Refused._without_cause, (self.error,)

    @staticmethod
    def _without_cause(error: TriremeError) -> _Refused:
        return _Refused(error=error)


def _outcome(find: Callable[[], Any]) -> _Found | _Refused:
    try:
        return _Found(value=find())
    except TriremeError as error:
        return _Refused(error=error)
    except Exception as error:
        return _Refused(error=TrainError("job.lead_failed", reason=error), cause=error)


def _heard(outcome: _Found | _Refused) -> _Found | _Refused:
    """Take what the leading rank tells; it shows a refusal itself."""
    if isinstance(outcome, _Refused):
        outcome.error.said_elsewhere = True
    return outcome


def _taken(outcome: Any) -> Any:
    if isinstance(outcome, _Refused):
        raise outcome.cause or outcome.error
    return outcome.value
