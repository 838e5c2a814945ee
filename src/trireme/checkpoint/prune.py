"""Which checkpoints to keep. Deletes only what a newer complete one makes needless."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from trireme.checkpoint.folder import delete_folder, is_stale, step_folders
from trireme.checkpoint.listing import CheckpointInfo, list_checkpoints
from trireme.words import say


def prune_checkpoints(
    root: Path,
    *,
    keep_last: int,
    keep_best: bool,
    keep_every: int | None = None,
    run_id: str = "",
    dry_run: bool = False,
    notice: Callable[[str], None] = warnings.warn,
) -> list[Path]:
    """Delete what is not to be kept and return the paths that are gone.

    Kept are the last ``keep_last`` good ones by order of saving, the one with the lowest ``eval_loss`` if
    asked, those whose step is a multiple of ``keep_every``, every damaged one (it may be wanted for study) and every
    one of another run. Folders of saves whose process is dead go too.

    Args:
        root: Folder of the run's checkpoints.
        keep_last: How many of the newest to keep, at least 1.
        keep_best: Whether to keep the best as well.
        keep_every: Keep those of every so many steps for good.
        run_id: The run whose checkpoints these are, as given to ``save_checkpoint``.
        dry_run: Delete nothing and return what would be gone.
        notice: Told about a folder that could not be deleted.
    """
    assert keep_last >= 1, "the schema asks for at least one"
    root = Path(root)
    own = [info for info in list_checkpoints(root, notice=_unheard) if info.manifest and info.manifest.run_id == run_id]
    # Marked not finite: never counted among those kept, and needless once a good one is newer.
    complete = [info for info in own if info.is_good or (info.manifest and not info.manifest.finite)]
    good = [info for info in own if info.is_good]
    keep = {info.path for info in good[-keep_last:]} | {info.path for info in complete[-1:]}
    if keep_best:
        keep |= {info.path for info in _best(good)}
    if keep_every is not None:
        keep |= {info.path for info in good if info.step % keep_every == 0}
    doomed = [info.path for info in complete if info.path not in keep] if good else []
    doomed += _leftovers(root)
    return doomed if dry_run else [path for path in doomed if _delete(path, notice)]


def _leftovers(root: Path) -> list[Path]:
    """Return what the dead left: unfinished folders, and a replaced checkpoint whose successor has the name."""
    folders = [each for each in step_folders(root) if each.kind and is_stale(each)]
    named = {each.step for each in step_folders(root) if not each.kind}
    return [each.path for each in folders if each.kind != "replaced" or each.step in named]


def _best(good: list[CheckpointInfo]) -> list[CheckpointInfo]:
    """Return the one with the lowest evaluation loss, the later of equals, or none if none was evaluated."""
    judged = [info for info in good if math.isfinite(_loss(info))]
    return [min(reversed(judged), key=_loss)] if judged else []


def _loss(info: CheckpointInfo) -> float:
    assert info.manifest is not None
    return info.manifest.metrics.get("eval_loss", math.inf)


def _delete(path: Path, notice: Callable[[str], None]) -> bool:
    try:
        if ".inprogress-" in path.name:
            shutil.rmtree(path)
        else:
            delete_folder(path)
    except OSError as error:
        # Too much kept is no reason to end a run.
        notice(say("checkpoint.not_deleted", path=path, reason=error))
        return False
    return True


def _unheard(text: str) -> None:
    """Drop a remark about a checkpoint that nobody is opening now."""
