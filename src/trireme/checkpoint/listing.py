"""What a checkpoint root holds, and which of it to go on from."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from trireme.checkpoint.folder import StepFolder, step_folders
from trireme.checkpoint.read import Checkpoint, open_checkpoint, read_manifest
from trireme.checkpoint.record import Manifest
from trireme.errors import CheckpointError
from trireme.words import say


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """A line of the list of checkpoints.

    Attributes:
        path: Its folder.
        step: Optimizer steps done, by the folder's name.
        size_bytes: Of all its files.
        manifest: None if neither copy can be read.
        problem: Why it can't be used; None for a good one.
    """

    path: Path
    step: int
    size_bytes: int
    manifest: Manifest | None
    problem: str | None

    @property
    def is_good(self) -> bool:
        """Tell whether a run may go on from it."""
        return self.problem is None


def list_checkpoints(
    root: Path, *, verify: bool = False, notice: Callable[[str], None] = warnings.warn
) -> list[CheckpointInfo]:
    """Return the committed checkpoints of a root, oldest save first, damaged ones included.

    Args:
        root: Folder of the run's checkpoints.
        verify: Hash every tensor; otherwise manifests, lengths and headers are checked.
        notice: Told about damage that a second copy made good.
    """
    infos = [_info(folder, verify=verify, notice=notice) for folder in _committed(Path(root))]
    return sorted(infos, key=lambda info: (info.manifest.sequence if info.manifest else 0, info.step))


def newest_checkpoint(
    root: Path,
    *,
    run_id: str | None = None,
    verify: bool = True,
    passed: Collection[Path] = (),
    notice: Callable[[str], None] = warnings.warn,
) -> Checkpoint | None:
    """Return the newest checkpoint that is wholly good; None where there is none.

    The newest is the one saved last. Every later one that can't be used, and every save that was cut
    off after it, is named in a notice: torn, flipped, truncated, incomplete or marked as not finite.

    Args:
        root: Folder of the run's checkpoints.
        run_id: Only this run's, if given.
        verify: Hash every tensor; otherwise manifests, lengths and headers are checked, and the caller does the rest.
        passed: Not these; they were found wanting and named already.
        notice: Told what was passed over, and why.
    """
    root = Path(root)
    infos = [info for info in list_checkpoints(root, notice=notice) if run_id is None or _is_of(info, run_id)]
    readable = [info for info in infos if info.manifest is not None and info.path not in passed]
    opened = (_try_open(info, verify=verify, notice=notice) for info in reversed(readable))
    found = next(filter(None, opened), None)
    step = found.step if found else -1
    for info in infos:
        if info.manifest is None and info.step > step:
            notice(say("checkpoint.skipped", path=info.path, reason=info.problem))
    for folder in step_folders(root):
        if folder.kind == "inprogress" and folder.step > step:
            notice(say("checkpoint.leftover", path=folder.path))
    return found


def _committed(root: Path) -> list[StepFolder]:
    """Return the checkpoints; one being replaced counts only while its successor has no name yet."""
    folders = [folder for folder in step_folders(root) if folder.is_checkpoint]
    named = {folder.step for folder in folders if not folder.kind}
    return [folder for folder in folders if not folder.kind or folder.step not in named]


def _info(folder: StepFolder, *, verify: bool, notice: Callable[[str], None]) -> CheckpointInfo:
    manifest, problem = None, None
    try:
        manifest = read_manifest(folder.path, notice=notice)
        # The copy's state was told about in the line above; once is enough.
        open_checkpoint(folder.path, verify=verify, notice=_unheard)
    except CheckpointError as error:
        problem = str(error)
    if problem is None and manifest is not None and not manifest.finite:
        problem = say("checkpoint.not_finite", path=folder.path)
    size_bytes = sum(path.stat().st_size for path in folder.path.iterdir() if path.is_file())
    return CheckpointInfo(path=folder.path, step=folder.step, size_bytes=size_bytes, manifest=manifest, problem=problem)


def _try_open(info: CheckpointInfo, *, verify: bool, notice: Callable[[str], None]) -> Checkpoint | None:
    reason: object = info.problem
    if reason is None:
        try:
            return open_checkpoint(info.path, verify=verify, notice=_unheard)
        except CheckpointError as error:
            reason = error
    notice(say("checkpoint.skipped", path=info.path, reason=reason))
    return None


def _is_of(info: CheckpointInfo, run_id: str) -> bool:
    return info.manifest is None or info.manifest.run_id == run_id


def _unheard(text: str) -> None:
    """Drop a remark that was made already."""
