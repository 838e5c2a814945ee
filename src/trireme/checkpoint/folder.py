"""Names in the checkpoint root, and how a folder comes into being there at once.

    step-N                        a committed checkpoint
    step-N.inprogress-<save id>   being written; whoever finds it ignores it
    step-N.replaced-<save id>     the older checkpoint of a step that was saved again; gone a moment later
    step-N.deleting-<save id>     being deleted

The save id names the machine and process that owns it, so that leftovers of the dead are told from work.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import xxhash

_NAME = re.compile(r"step-(\d+)(?:\.(inprogress|replaced|deleting)-([0-9a-z-]+))?")
_SAVE_ID = re.compile(r"([0-9a-f]{8})-p(\d+)-t(\d+)-[0-9a-f]{16}")

_CLOCK_SLACK_S = 5
"""A process's start time is derived from the boot time, which moves a little when the clock is set."""

_FOREIGN_STALE_S = 24 * 3600
"""A leftover of a machine we can't ask is taken for dead when nothing in it changed for a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFolder:
    """An entry of the checkpoint root."""

    path: Path
    step: int
    kind: str
    save_id: str

    @property
    def is_checkpoint(self) -> bool:
        """Tell whether this was committed: one that is being replaced still counts."""
        return self.kind in ("", "replaced")


def step_folders(root: Path) -> list[StepFolder]:
    """Return what the root holds, by step; anything with another name is not ours."""
    found = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        match = _NAME.fullmatch(path.name)
        if match and path.is_dir():
            step, kind, save_id = int(match.group(1)), match.group(2) or "", match.group(3) or ""
            found.append(StepFolder(path=path, step=step, kind=kind, save_id=save_id))
    return sorted(found, key=lambda folder: (folder.step, folder.kind))


def new_save_id() -> str:
    """Return an id that no other save has, and that names the process that makes it."""
    process = psutil.Process()
    return f"{_machine()}-p{process.pid}-t{int(process.create_time())}-{secrets.token_hex(8)}"


def is_stale(folder: StepFolder) -> bool:
    """Tell whether the process that made an unfinished folder is gone."""
    owner = _SAVE_ID.fullmatch(folder.save_id)
    if owner is None or owner.group(1) != _machine():
        return time.time() - _last_change_s(folder.path) > _FOREIGN_STALE_S
    try:
        started_s = psutil.Process(int(owner.group(2))).create_time()
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:
        return False
    return abs(started_s - int(owner.group(3))) > _CLOCK_SLACK_S


def commit_folder(folder: Path, target: Path, save_id: str) -> None:
    """Give a finished folder its name, durably; an older one of that name gives way and then goes."""
    old = target.with_name(f"{target.name}.replaced-{save_id}") if target.exists() else None
    if old is not None:
        os.rename(target, old)
    os.rename(folder, target)
    sync_folder(target.parent)
    if old is not None:
        delete_folder(old)


def delete_folder(path: Path) -> None:
    """Delete a folder so that a kill in the middle leaves no half checkpoint behind."""
    match = _NAME.fullmatch(path.name)
    if match and match.group(2) in (None, "replaced"):
        doomed = path.with_name(f"step-{match.group(1)}.deleting-{new_save_id()}")
        os.rename(path, doomed)
        path = doomed
    shutil.rmtree(path)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable; without it a rename may be lost with the power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _machine() -> str:
    # Containers may share a host name and always have process ids of their own.
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return xxhash.xxh32_hexdigest(f"{platform.node()} {namespace}".encode())


def _last_change_s(path: Path) -> float:
    try:
        return max([path.stat().st_mtime, *(each.stat().st_mtime for each in path.iterdir())])
    except OSError:
        return time.time()
