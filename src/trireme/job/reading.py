"""What one rank reads of a run's batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trireme.config import RunConfig
from trireme.data import Batch, Loader, PreparedData
from trireme.parallel import ParallelModel
from trireme.train import StepPlan, share_rows, take_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DataShare:
    """Which part of each global batch a rank reads."""

    rank: int = 0
    degree: int = 1

    @classmethod
    def of(cls, model: ParallelModel | None) -> DataShare:
        """Return the share of a rank of this model; None is one device, which reads all."""
        if model is None:
            return cls()
        line = model.axes["dp"]
        return cls(rank=line.rank, degree=line.degree)


class Reading:
    """Opens the batches of a run for one rank."""

    def __init__(self, data: PreparedData, *, config: RunConfig, plan: StepPlan, share: DataShare) -> None:
        self._stream = data.train
        self._held_out = data.evaluation
        self._config = config
        self._plan = plan
        self._share = share

    @contextmanager
    def open_loader(self, first: int, last: int) -> Iterator[Iterator[Batch]]:
        """Yield the batches of steps first..last-1, read ahead."""
        with Loader(
            self._stream,
            global_batch_seqs=self._plan.global_batch_seqs,
            first_step=first,
            last_step=last,
            dp_rank=self._share.rank,
            dp_degree=self._share.degree,
            workers=self._config.data.workers,
            prefetch=self._config.data.prefetch,
        ) as loader:
            yield map(self._cut_short, loader)

    def eval_batches(self) -> Iterator[Batch]:
        """Yield the held-out batches."""
        assert self._held_out is not None, "fit evaluates only where something is held out"
        return self._held_out.eval_batches(
            batch_seqs=-(-self._plan.global_batch_seqs // self._share.degree),
            limit_seqs=self._config.train.eval_seqs,
            dp_rank=self._share.rank,
            dp_degree=self._share.degree,
        )

    def _cut_short(self, batch: Batch) -> Batch:
        """Return the batch; of a shorter last step this rank's share of the samples that count."""
        num_seqs, whole_seqs = self._plan.seqs_at(batch.step), self._plan.global_batch_seqs
        if self._share.degree == 1 or num_seqs >= whole_seqs:
            return batch
        whole = take_rows(self._stream.read(batch.step, global_batch_seqs=whole_seqs), num_seqs)
        return share_rows(whole, rank=self._share.rank, degree=self._share.degree)
