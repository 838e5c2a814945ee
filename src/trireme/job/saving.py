"""From the loop's snapshots to checkpoints on disk, by all ranks together, beside the training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from trireme.checkpoint import (
    Answer,
    Deal,
    LeadOrder,
    PieceNote,
    RankSaver,
    Retention,
    StatePiece,
    WriteOrder,
    begin_save,
    blank_manifest,
    deal_pieces,
    describe_pieces,
)
from trireme.config import CheckpointSection
from trireme.errors import CheckpointError
from trireme.job.team import Team
from trireme.observe import Event, Recorder, RunFolder
from trireme.supervise import beat
from trireme.train import Snapshot
from trireme.units import format_bytes
from trireme.words import say

_LOOK_S = 0.2
_LONG_WAIT_S = 2.0
"""A save that has to wait so long for the one before says so: saves are asked for faster than they can be written."""

_ERROR_WAIT_S = 60.0
"""How long a run that ends with an error waits for the checkpoint that is on its way."""

_OPTIMIZER_COPIES = 2
"""State tensors of an optimizer for each trained parameter: AdamW's two moments."""


_FIRST_INTERVAL_STEPS = 10
"""Until a save was measured."""


def best_interval(*, stall_s: float, step_s: float, mtbf_s: float) -> int:
    """Return the steps between saves that lose least time to saving and to work done again after a failure.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", 1974; J. T. Daly, "A higher
    order estimate of the optimum checkpoint interval for restart dumps", 2006, equation 37's first terms.
    """
    if stall_s >= 2 * mtbf_s:
        return max(1, round(mtbf_s / step_s))
    ratio = math.sqrt(stall_s / (2 * mtbf_s))
    interval_s = math.sqrt(2 * stall_s * mtbf_s) * (1 + ratio / 3 + ratio**2 / 9) - stall_s
    return max(1, round(interval_s / step_s))


@dataclass(slots=True, kw_only=True)
class _Save:
    """The save on its way."""

    step: int
    begun_s: float
    stall_s: float
    value_bytes: int
    failure: str | None = None


class Saver:
    """Has a snapshot written by all ranks, and records how far the run is safe.

    Every rank has one; all call ``warm``, a save and ``settle(wait=True)`` together. A save copies the state and
    returns; ``settle`` hears what became of it. A save that fails in the middle of a run is a warning: the run and
    its older checkpoints go on. At the end there is no later chance, so the error ends the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        *,
        section: CheckpointSection,
        team: Team,
        layout: str,
        device: torch.device,
        notice: Callable[[Event], None],
        recorder: Recorder | None = None,
    ) -> None:
        """``recorder`` is set on the rank that leads; only there ``notice`` is heard."""
        self.last: Path | None = None
        self._folder = folder
        self._section = section
        self._team = team
        self._layout = layout
        self._recorder = recorder
        self._notice = notice
        self._rank_saver = RankSaver(device=device, background=section.background)
        self._durable: list[int] = []
        self._save: _Save | None = None
        self._number = 0
        self._notes: tuple[PieceNote, ...] = ()
        self._deal: Deal | None = None
        self._interval: int | None = None
        self._last = (time.perf_counter(), folder.state.step)

    def warm(self, pieces: Mapping[str, StatePiece]) -> None:
        """Start the writer and make its memory before the first step, for weights and an optimizer's state."""
        deal = self._agree_on_deal(pieces)
        has_state = any(not note.name.startswith("model/") for note in deal.tensors)
        parts = deal.parts[self._team.rank]
        copies = 1 if has_state else 1 + _OPTIMIZER_COPIES
        value_bytes = sum(part.size_bytes * (1 if part.frozen else copies) for part in parts)
        try:
            self._rank_saver.warm(value_bytes=value_bytes, num_parts=len(parts) * 4)
        except (CheckpointError, OSError) as error:
            self._warn(say("job.save_inline", reason=error), step=self._folder.state.step)

    def __call__(self, snapshot: Snapshot) -> bool:
        """Take a snapshot and have it written; returns whether there will be a checkpoint, as far as one can tell.

        Raises:
            CheckpointError: It can't be saved and it is the run's last.
        """
        is_last = snapshot.reason in ("end", "interrupt")
        try:
            self._begin(snapshot)
        except CheckpointError as error:
            if is_last:
                raise
            self._warn(say("job.save_failed", reason=error), step=snapshot.step)
            return False
        if not is_last and self._section.background:
            return True
        failure = self._finish()
        if failure is not None and is_last:
            raise CheckpointError("job.save_lost", reason=failure)
        return failure is None

    def settle(self, *, wait: bool) -> tuple[int, ...]:
        """Return the steps whose checkpoints became durable since this was last asked; with ``wait``, of all begun.

        Asked by every rank after every step, which costs a look at a pipe. Whoever ends a run (a signal, its last
        step) asks with ``wait``, on all ranks together.
        """
        if wait:
            self._finish()
        else:
            self._hear(wait_s=0.0)
        durable, self._durable = tuple(self._durable), []
        return durable

    def interval(self) -> int | None:
        """Return the steps between saves where ``checkpoint.mtbf_hours`` asks for the least cost; None: as set."""
        section = self._section
        if section.mtbf_hours is None or section.every_steps is not None:
            return None
        return self._interval or _FIRST_INTERVAL_STEPS

    def close(self, *, wait_s: float = 0.0) -> None:
        """End the writer; a save on its way has ``wait_s`` to become durable. Not a matter of all ranks together."""
        deadline_s = time.monotonic() + wait_s
        while self._rank_saver.busy and time.monotonic() < deadline_s:
            self._hear(wait_s=_LOOK_S)
        self._rank_saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        # An error that ends the run is no reason to lose the checkpoint before it; someone who wants out is.
        impatient = kind is not None and not issubclass(kind, Exception)
        self.close(wait_s=0.0 if kind is None or impatient else _ERROR_WAIT_S)

    def _begin(self, snapshot: Snapshot) -> None:
        """Copy the state and give the order; all ranks or none."""
        begun_s = time.perf_counter()
        self._finish()
        self._tell_wait(time.perf_counter() - begun_s, step=snapshot.step)
        deal = self._agree_on_deal(snapshot.pieces)
        blank = blank_manifest(
            step=snapshot.step,
            state=snapshot.state,
            metrics=snapshot.metrics,
            run_id=self._folder.state.run_id,
            layout=self._layout,
            finite=True,
        )
        root, rank = self._folder.checkpoint_dir, self._team.rank
        save_id, path = self._team.from_lead(lambda: self._open_save(root, step=snapshot.step, deal=deal))
        self._number += 1
        section = self._section
        retention = Retention(last=section.keep_last, best=section.keep_best, every=section.keep_every)
        lead = LeadOrder(
            num_ranks=self._team.size,
            tensors=deal.tensors,
            manifest=blank,
            retention=retention,
            copy_to=section.copy_to,
        )
        order = WriteOrder(
            number=self._number,
            rank=rank,
            folder=Path(path),
            save_id=save_id,
            run_id=self._folder.state.run_id,
            parts=(),
            lead=lead if self._team.leads else None,
        )
        problem = self._rank_saver.take(snapshot.pieces, deal.parts[rank], order=order)
        stall_s = time.perf_counter() - begun_s
        self._agree_on_interval(step=snapshot.step, stall_s=stall_s, begun_s=begun_s)
        self._save = _Save(step=snapshot.step, begun_s=begun_s, stall_s=stall_s, value_bytes=deal.total_bytes)
        if problem is not None:
            self._warn(say("job.save_inline", reason=problem), step=snapshot.step)

    def _agree_on_deal(self, pieces: Mapping[str, StatePiece]) -> Deal:
        """Return who writes what; worked out anew only when some rank holds something else than at the last save.

        Raises:
            CheckpointError: A tensor of some rank can't be saved.
        """
        notes: tuple[PieceNote, ...] = ()
        problem: CheckpointError | None = None
        try:
            notes = describe_pieces(pieces)
        except CheckpointError as error:
            problem = error
        known = self._deal is not None and notes == self._notes
        everyone = self._team.everyone((known, problem))
        for _, each in everyone:
            if each is not None:
                raise each
        if self._deal is None or not all(known for known, _ in everyone):
            self._notes, self._deal = notes, deal_pieces(self._team.everyone(notes))
        return self._deal

    def _open_save(self, root: Path, *, step: int, deal: Deal) -> tuple[str, str]:
        size = {"value_bytes": deal.total_bytes, "num_tensors": len(deal.tensors)}
        try:
            if self._recorder is not None:
                self._recorder.sync()  # what a checkpoint promises to go on from must be in the log
            save_id, folder = begin_save(root, step=step, **size)
        except OSError as error:
            raise CheckpointError("checkpoint.unwritable", path=root, reason=error.strerror or error) from error
        return save_id, str(folder)

    def _agree_on_interval(self, *, step: int, stall_s: float, begun_s: float) -> None:
        """Find the steps between saves that cost least, by this save's stall and the steps before it."""
        mtbf_hours, (at_s, last_step) = self._section.mtbf_hours, self._last
        if mtbf_hours is not None:
            step_s = max(1e-9, begun_s - at_s) / max(1, step - last_step)
            best = best_interval(stall_s=stall_s, step_s=step_s, mtbf_s=mtbf_hours * 3600)
            self._interval = self._team.from_lead(lambda: best)
        self._last = (time.perf_counter(), step)

    def _finish(self) -> str | None:
        """Wait until the save on its way came to its end on all ranks; returns why it failed, if it did."""
        while self._rank_saver.busy:
            beat()  # a wait, not a hang: the writer is watched
            self._hear(wait_s=_LOOK_S)
        self._hear(wait_s=0.0)
        if self._save is None:
            return None
        failure: str | None = self._team.from_lead(lambda: self._save.failure if self._save else None)
        self._save = None
        return failure

    def _hear(self, *, wait_s: float) -> None:
        for answer in self._rank_saver.hear(wait_s=wait_s):
            self._take_note(answer)

    def _take_note(self, answer: Answer) -> None:
        save = self._save
        step = save.step if save is not None else self._folder.state.step
        if answer.event == "note":
            self._warn(answer.text, step=step)
        elif answer.event == "failed" and save is not None:
            save.failure = answer.text
            self._warn(say("job.save_failed", reason=answer.text), step=step)
        elif answer.event == "committed" and save is not None:
            self._record_committed(save, Path(answer.path))
        elif answer.event == "copied" and self._recorder is not None:
            self._recorder.on_event(Event(kind="save", text=answer.text, step=step))

    def _record_committed(self, save: _Save, path: Path) -> None:
        self.last = path
        self._durable.append(save.step)
        try:
            self._folder.mark(step=save.step)
        except OSError as error:  # the checkpoint is whole; that the folder doesn't say so is no reason to end
            self._warn(str(error), step=save.step)
        if self._recorder is not None:
            durable_s = time.perf_counter() - save.begun_s
            size = format_bytes(save.value_bytes)
            text = say("job.saved", step=save.step, size=size, stall_s=save.stall_s, durable_s=durable_s)
            data = {"stall_s": save.stall_s, "durable_s": durable_s, "bytes": save.value_bytes}
            self._recorder.on_event(Event(kind="save", text=text, step=save.step, data=data))

    def _tell_wait(self, waited_s: float, *, step: int) -> None:
        if waited_s > _LONG_WAIT_S:
            self._warn(say("job.save_waited", waited_s=waited_s), step=step)

    def _warn(self, text: str, *, step: int) -> None:
        if self._team.leads:
            self._notice(Event(kind="save_failed", text=text, step=step, level="warning"))
