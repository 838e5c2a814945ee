"""Which source each place of the stream is taken from: a pure function of the place.

Without weights all sources are one pool, so an epoch of the mixture is each sample once. With weights each
source is a pool with epochs of its own, and a periodic schedule deals the places out so that after any
number of places each pool has had its exact share to within one sample.

Source: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32(3), 1980, pp. 323-330.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm

import numpy as np

from trireme.errors import DataError

MAX_PERIOD = 65536
"""Longest schedule; shares whose common denominator is larger are rounded to 65536ths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Samples drawn as one, with epochs of their own; ``turns`` of each period are its."""

    base_id: int
    num_samples: int
    turns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """For places of the stream: the pool each is taken from, and how many that pool gave before."""

    pools: np.ndarray
    draws: np.ndarray


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Pools and the schedule that deals places out to them."""

    pools: tuple[Pool, ...]
    rounded: bool = False

    @cached_property
    def schedule(self) -> np.ndarray:
        """Pool of each place of one period. Shapes: [period] int32."""
        return build_schedule([pool.turns for pool in self.pools])

    @property
    def period(self) -> int:
        """Places after which the schedule repeats."""
        return sum(pool.turns for pool in self.pools)

    @cached_property
    def _turn(self) -> np.ndarray:
        turn = np.empty(self.period, dtype=np.int64)
        for number in range(len(self.pools)):
            mine = self.schedule == number
            turn[mine] = np.arange(np.count_nonzero(mine))
        return turn

    def at(self, positions: np.ndarray) -> Place:
        """Return where ``positions`` are taken from. Shapes: [N] int64 -> [N], [N]."""
        if len(self.pools) == 1:
            return Place(pools=np.zeros(len(positions), dtype=np.int32), draws=positions)
        rounds, rest = np.divmod(positions, self.period)
        pools = self.schedule[rest]
        turns = np.array([pool.turns for pool in self.pools], dtype=np.int64)
        return Place(pools=pools, draws=rounds * turns[pools] + self._turn[rest])

    def drawn(self, position: int) -> list[int]:
        """Return how many samples each pool has given before ``position``."""
        rounds, rest = divmod(position, self.period)
        begun = np.bincount(self.schedule[:rest], minlength=len(self.pools))
        return [rounds * pool.turns + int(part) for pool, part in zip(self.pools, begun, strict=True)]


def build_mixture(sizes: Sequence[int], *, weights: Sequence[float | None]) -> Mixture:
    """Return the mixture of sources with ``sizes`` samples each.

    Raises:
        DataError: Some sources have a weight and some have none, or a weighted one has no sample.
    """
    given = [weight for weight in weights if weight is not None]
    if not given:
        return Mixture(pools=(Pool(base_id=0, num_samples=sum(sizes), turns=1),))
    if len(given) < len(weights):
        missing = ", ".join(str(number) for number, weight in enumerate(weights) if weight is None)
        raise DataError("sample.weights_partly_given", missing=missing)
    if 0 in sizes:
        raise DataError("sample.weighted_source_is_empty", index=list(sizes).index(0))
    shares, rounded = _whole_shares(given)
    bases = np.concatenate([[0], np.cumsum(sizes)])
    pools = [
        Pool(base_id=int(base), num_samples=size, turns=share)
        for base, size, share in zip(bases[:-1], sizes, shares, strict=True)
    ]
    return Mixture(pools=tuple(pools), rounded=rounded)


def _whole_shares(weights: Sequence[float]) -> tuple[list[int], bool]:
    """Return turns a period that are exactly in the ratio of ``weights`` if the period is short enough."""
    exact = [Fraction(repr(float(weight))) for weight in weights]
    scale = lcm(*(share.denominator for share in exact))
    whole = [int(share * scale) for share in exact]
    divisor = gcd(*whole)
    whole = [share // divisor for share in whole]
    if sum(whole) <= MAX_PERIOD:
        return whole, False
    return _rounded_shares(whole), True


def _rounded_shares(whole: Sequence[int]) -> list[int]:
    """Round to turns that sum to ``MAX_PERIOD``, the largest remainders up, at least one turn each."""
    total = sum(whole)
    turns = [max(1, share * MAX_PERIOD // total) for share in whole]
    spare = MAX_PERIOD - sum(turns)
    by_need = sorted(range(len(whole)), key=lambda number: turns[number] - Fraction(whole[number] * MAX_PERIOD, total))
    for number in by_need[: max(spare, 0)]:
        turns[number] += 1
    if spare < 0:  # the turns that very small shares were given come off the largest
        turns[turns.index(max(turns))] += spare
    return turns


def build_schedule(turns: Sequence[int]) -> np.ndarray:
    """Return the pool of each place of one period, every prefix within one of its exact share.

    A pool may be taken once it lags by 1/(2k-2); of those, the one whose deadline comes first is.

    Shapes:
        turns: k whole numbers. Returned: [sum(turns)] int32.
    """
    if len(turns) == 1:
        return np.zeros(turns[0], dtype=np.int32)
    period, slack = sum(turns), 2 * len(turns) - 2
    counts = [0] * len(turns)
    schedule = np.empty(period, dtype=np.int32)
    for place in range(1, period + 1):
        first, first_deadline = -1, float("inf")
        for pool, share in enumerate(turns):
            lag = (share * place - counts[pool] * period) * slack
            deadline = ((slack - 1) * period - lag) / share
            if lag >= period and deadline < first_deadline:
                first, first_deadline = pool, deadline
        counts[first] += 1
        schedule[place - 1] = first
    return schedule
