"""The order of samples: a pure function of (seed, position), the same for any ranks, workers and restarts.

Position p of the stream belongs to a pool of samples (``mix.py``); the pool's draw number gives its epoch
and the place in that epoch; a permutation keyed by (seed, pool, epoch) turns the place into a sample
(``permute.py``). A global batch is a run of positions; it may span the border between two epochs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trireme.data.mix import Mixture
from trireme.data.permute import derive_key, derive_keys, permute

_BLOCK = 4096  # positions worked out at a time: numpy's cost a call is then spread over many samples
_BLOCKS_KEPT = 2  # a batch that spans two blocks finds both again
_ORDER_KEY = 0x6F72646572  # sets these permutations apart from others drawn from the same seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Samples at a run of positions. Shapes: both [N] int64."""

    ids: np.ndarray
    epochs: np.ndarray


class SampleOrder:
    """Which sample stands at each position of the endless stream."""

    def __init__(self, mixture: Mixture, *, seed: int) -> None:
        self.mixture = mixture
        self.seed = seed
        self._blocks: tuple[tuple[int, Drawn], ...] = ()

    def at(self, start: int, stop: int) -> Drawn:
        """Return the samples at positions ``start .. stop-1``."""
        blocks = [self._block(number) for number in range(start // _BLOCK, max(stop - 1, start) // _BLOCK + 1)]
        offset = start // _BLOCK * _BLOCK
        cut = slice(start - offset, stop - offset)
        if len(blocks) == 1:
            return Drawn(ids=blocks[0].ids[cut], epochs=blocks[0].epochs[cut])
        ids = np.concatenate([block.ids for block in blocks])
        epochs = np.concatenate([block.epochs for block in blocks])
        return Drawn(ids=ids[cut], epochs=epochs[cut])

    def _block(self, number: int) -> Drawn:
        for known, block in self._blocks:
            if known == number:
                return block
        block = self._draw(np.arange(number * _BLOCK, (number + 1) * _BLOCK, dtype=np.int64))
        # One assignment, so that a thread reading beside this one sees either tuple, both right.
        self._blocks = (*self._blocks[1 - _BLOCKS_KEPT :], (number, block))
        return block

    def _draw(self, positions: np.ndarray) -> Drawn:
        place = self.mixture.at(positions)
        ids = np.empty(len(positions), dtype=np.int64)
        epochs = np.empty(len(positions), dtype=np.int64)
        for number, pool in enumerate(self.mixture.pools):
            mine = np.flatnonzero(place.pools == number)
            epochs[mine], places = np.divmod(place.draws[mine], pool.num_samples)
            keys = derive_keys(derive_key(self.seed, _ORDER_KEY, number), epochs[mine])
            ids[mine] = pool.base_id + permute(places, size=pool.num_samples, keys=keys)
        ids.setflags(write=False)  # blocks are handed out as views
        epochs.setflags(write=False)
        return Drawn(ids=ids, epochs=epochs)


def share_of_rank(count: int, *, dp_rank: int, dp_degree: int) -> slice:
    """Return the part of ``count`` samples that is ``dp_rank``'s; parts differ by at most one sample."""
    return slice(dp_rank * count // dp_degree, (dp_rank + 1) * count // dp_degree)
