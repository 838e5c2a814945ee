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
from heapq import heappop, heappush
from math import gcd, lcm

import numpy as np

from trireme.errors import DataError

MAX_PERIOD = 65536
"""Longest schedule; shares without a common denominator up to it are rounded to fractions of it."""


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
    """Round to turns that sum to the longest period: the largest remainders up, at least one turn each."""
    room = max(MAX_PERIOD, 2 * len(whole))
    turns, free = [1] * len(whole), list(range(len(whole)))
    while True:
        total = sum(whole[number] for number in free)
        enough = [number for number in free if whole[number] * room >= total]
        if len(enough) == len(free):
            break
        room -= len(free) - len(enough)
        free = enough
    for number in free:
        turns[number] = whole[number] * room // total
    by_remainder = sorted(free, key=lambda number: -(whole[number] * room % total))
    for number in by_remainder[: room - sum(turns[number] for number in free)]:
        turns[number] += 1
    return turns


def build_schedule(turns: Sequence[int]) -> np.ndarray:
    """Return the pool of each place of one period, every prefix within one of its exact share.

    A pool's next turn may be taken once the pool lags by 1/(2k-2); of the turns that may, the one whose
    deadline comes first is. Both times follow from the number of the turn alone.

    Shapes:
        turns: k whole numbers. Returned: [sum(turns)] int32.
    """
    if len(turns) == 1:
        return np.zeros(turns[0], dtype=np.int32)
    period, slack = sum(turns), 2 * len(turns) - 2
    waiting = sorted(
        (-(-(slack * turn + 1) * period // (slack * share)), (slack * (turn + 1) - 1) / share, pool)
        for pool, share in enumerate(turns)
        for turn in range(share)
    )
    schedule = np.empty(period, dtype=np.int32)
    ready: list[tuple[float, int]] = []
    released = 0
    for place in range(1, period + 1):
        while released < period and waiting[released][0] <= place:
            heappush(ready, waiting[released][1:])
            released += 1
        schedule[place - 1] = heappop(ready)[1]
    return schedule
