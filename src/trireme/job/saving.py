"""From the loop's snapshots to checkpoints on disk, kept and pruned as the settings say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trireme.checkpoint import prune_checkpoints, save_checkpoint
from trireme.config import CheckpointSection
from trireme.errors import CheckpointError
from trireme.observe import Event, Recorder, RunFolder
from trireme.train import Snapshot
from trireme.words import say


class Saver:
    """Writes a snapshot, prunes what it makes needless, and records how far the run is safe.

    A save that fails in the middle of a run is a warning: the run and its older checkpoints go on. At the
    end there is no later chance, so the error ends the run.
    """

    def __init__(
        self, folder: RunFolder, *, section: CheckpointSection, recorder: Recorder, notice: Callable[[Event], None]
    ) -> None:
        self.last: Path | None = None
        self._durable: list[int] = []
        self._folder = folder
        self._section = section
        self._recorder = recorder
        self._notice = notice

    def __call__(self, snapshot: Snapshot) -> bool:
        """Save one snapshot; returns whether it is safe.

        Raises:
            CheckpointError: It can't be saved and it is the run's last.
            OSError: It is the run's last, and the disk has no room for how far the run came.
        """
        try:
            self._save(snapshot)
        except (CheckpointError, OSError) as error:
            if snapshot.reason in ("end", "interrupt"):
                raise
            text = say("job.save_failed", reason=error)
            self._notice(Event(kind="save_failed", text=text, step=snapshot.step, level="warning"))
            return False
        return True

    def settle(self, *, wait: bool) -> tuple[int, ...]:
        """Return the steps whose checkpoints became durable since this was last asked; with ``wait``, of all begun.

        Asked by every rank after every step. Whoever ends a run (a signal, its last step) asks with ``wait``.
        """
        durable, self._durable = tuple(self._durable), []
        return durable

    def _save(self, snapshot: Snapshot) -> None:
        self._recorder.sync()  # what a checkpoint promises to go on from must be in the log
        self.last = save_checkpoint(
            self._folder.checkpoint_dir,
            step=snapshot.step,
            tensors=snapshot.tensors,
            state=snapshot.state,
            metrics=snapshot.metrics,
            run_id=self._folder.state.run_id,
            notice=lambda text: self._warn(text, step=snapshot.step),
        )
        self._folder.mark(step=snapshot.step)
        self._durable.append(snapshot.step)
        prune_checkpoints(
            self._folder.checkpoint_dir,
            keep_last=self._section.keep_last,
            keep_best=self._section.keep_best,
            run_id=self._folder.state.run_id,
            notice=lambda text: self._warn(text, step=snapshot.step),
        )

    def _warn(self, text: str, *, step: int) -> None:
        self._notice(Event(kind="save", text=text, step=step, level="warning"))
