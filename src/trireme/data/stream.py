"""Samples by step: what stands at a place of the stream, read into arrays.

A stream is rows of sources (``pack.py``, ``gather.py``) in an order (``order.py``). It holds no position:
``read(step)`` is a pure function, so any number of ranks, workers and restarts read the same samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from trireme.data.batch import NOT_LEARNED, PADDING_DOCUMENT, Batch
from trireme.data.gather import RowReader, TokenCounts, empty_block
from trireme.data.identity import StreamIdentity
from trireme.data.mix import build_mixture
from trireme.data.order import Drawn, SampleOrder, share_of_rank
from trireme.data.pack import PackPlan
from trireme.data.sample_map import SampleMap
from trireme.data.store import TokenStore, open_store


@dataclass(frozen=True, kw_only=True)
class StreamSource:
    """Rows of one source; their ids are ``base_id .. base_id + num_samples - 1``."""

    name: str
    weight: float | None
    base_id: int
    store: Any
    plan: PackPlan

    @property
    def num_samples(self) -> int:
        """Samples in an epoch of this source."""
        return self.plan.num_rows

    @cached_property
    def reader(self) -> RowReader:
        """Reads its rows."""
        return RowReader(self.store, self.plan)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a store as its folder: a worker maps the same files instead of receiving the tokens."""
        store = self.store.folder if isinstance(self.store, TokenStore) else self.store
        return _restore_source, (self.name, self.weight, self.base_id, store, self.plan)


def _restore_source(name: str, weight: float | None, base_id: int, store: Any, plan: PackPlan) -> StreamSource:
    if isinstance(store, Path):
        store = open_store(store, verify=False)  # the process that sends it has verified it
    return StreamSource(name=name, weight=weight, base_id=base_id, store=store, plan=plan)


class SampleStream:
    """The samples of a run at every step.

    Args:
        sources: Rows, with base ids that follow each other.
        seed: Decides the order.
        pad_id: What fills rows.
        identity: What the samples depend on.
        sample_map: Applied to each sample.
    """

    def __init__(
        self,
        sources: tuple[StreamSource, ...],
        *,
        seed: int,
        pad_id: int,
        identity: StreamIdentity,
        sample_map: SampleMap | None = None,
    ) -> None:
        sizes, weights = [s.num_samples for s in sources], [s.weight for s in sources]
        self.sources = sources
        self.seq_len = sources[0].plan.rules.seq_len
        self.num_samples = sum(sizes)
        self.identity = identity
        self.order = SampleOrder(build_mixture(sizes, weights=weights), seed=seed)
        self.sample_map = sample_map
        self._pad_id = pad_id
        self._bases = np.array([source.base_id for source in sources], dtype=np.int64)

    @property
    def fingerprint(self) -> str:
        """xxh3-128 (hex): equal only for streams that give equal samples at every step."""
        return self.identity.fingerprint

    def ids_at(self, step: int, *, global_batch_seqs: int) -> np.ndarray:
        """Return the samples of a step, over all ranks. Shapes: [global_batch_seqs] int64."""
        return self.order.at(step * global_batch_seqs, (step + 1) * global_batch_seqs).ids

    def read(self, step: int, *, global_batch_seqs: int, dp_rank: int = 0, dp_degree: int = 1) -> Batch:
        """Return one rank's samples of a step; ranks' parts differ by at most one sample."""
        mine = share_of_rank(global_batch_seqs, dp_rank=dp_rank, dp_degree=dp_degree)
        block = empty_block(mine.stop - mine.start, seq_len=self.seq_len)
        return self.read_into(block, step, global_batch_seqs=global_batch_seqs, dp_rank=dp_rank, dp_degree=dp_degree)

    def read_into(
        self, block: np.ndarray, step: int, *, global_batch_seqs: int, dp_rank: int = 0, dp_degree: int = 1
    ) -> Batch:
        """Do ``read`` into given room. Shapes: block [4, B, T] int32, B this rank's share."""
        mine = share_of_rank(global_batch_seqs, dp_rank=dp_rank, dp_degree=dp_degree)
        start = step * global_batch_seqs
        return self._read_drawn(self.order.at(start + mine.start, start + mine.stop), block, step=step)

    def eval_batches(
        self, *, batch_seqs: int, limit_seqs: int | None = None, dp_rank: int = 0, dp_degree: int = 1
    ) -> Iterator[Batch]:
        """Yield one rank's part of one pass over the first ``limit_seqs`` samples, each exactly once.

        Every rank yields equally many batches, of at most ``batch_seqs`` samples; the last ones may be empty
        on some ranks.
        """
        count = self.num_samples if limit_seqs is None else min(limit_seqs, self.num_samples)
        for number, start in enumerate(range(0, count, batch_seqs * dp_degree)):
            size = min(batch_seqs * dp_degree, count - start)
            mine = share_of_rank(size, dp_rank=dp_rank, dp_degree=dp_degree)
            block = empty_block(mine.stop - mine.start, seq_len=self.seq_len)
            drawn = self.order.at(start + mine.start, start + mine.stop)
            yield self._read_drawn(drawn, block, step=number)

    def drawn_per_source(self, step: int, *, global_batch_seqs: int) -> list[float]:
        """Return how many samples each source gives before ``step``; an expected share where sources are one pool."""
        counts = self.order.mixture.drawn(step * global_batch_seqs)
        if len(counts) == len(self.sources):
            return [float(count) for count in counts]
        return [counts[0] * source.num_samples / self.num_samples for source in self.sources]

    def state(self, step: int, *, global_batch_seqs: int) -> dict[str, Any]:
        """Return what a checkpoint keeps: plain JSON values, the same on every rank."""
        return self.identity.state(step, global_batch_seqs=global_batch_seqs)

    def check_state(self, state: Mapping[str, Any], *, global_batch_seqs: int | None = None) -> None:
        """Return if this stream goes on exactly where ``state`` was taken.

        Raises:
            CheckpointError: The data, how it becomes samples, or the batch size changed.
        """
        self.identity.check_state(state, global_batch_seqs=global_batch_seqs)

    def source_of(self, sample_id: int) -> StreamSource:
        """Return the source a sample is from."""
        return self.sources[int(np.searchsorted(self._bases, sample_id, side="right")) - 1]

    def _read_drawn(self, drawn: Drawn, block: np.ndarray, *, step: int) -> Batch:
        counts = self._fill(drawn.ids, block)
        if self.sample_map is not None:
            self.sample_map.apply(block, ids=drawn.ids, epochs=drawn.epochs)
            counts = _count(block)
        return Batch(
            step=step,
            sample_ids=drawn.ids,
            input_ids=block[0],
            labels=block[1],
            position_ids=block[2],
            document_ids=block[3],
            num_real_tokens=counts.num_real,
            num_target_tokens=counts.num_target,
        )

    def _fill(self, ids: np.ndarray, block: np.ndarray) -> TokenCounts:
        if len(self.sources) == 1:
            return self.sources[0].reader.fill(ids, block, pad_id=self._pad_id)
        owners = np.searchsorted(self._bases, ids, side="right") - 1
        num_real = num_target = 0
        for number in np.unique(owners):
            source, mine = self.sources[number], np.flatnonzero(owners == number)
            part = empty_block(len(mine), seq_len=self.seq_len)
            counts = source.reader.fill(ids[mine] - source.base_id, part, pad_id=self._pad_id)
            block[:, mine] = part
            num_real, num_target = num_real + counts.num_real, num_target + counts.num_target
        return TokenCounts(num_real, num_target)


def _count(block: np.ndarray) -> TokenCounts:
    return TokenCounts(int((block[3] != PADDING_DOCUMENT).sum()), int((block[1] != NOT_LEARNED).sum()))
