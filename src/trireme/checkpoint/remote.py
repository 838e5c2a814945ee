"""Copies elsewhere: a folder, or any place that fsspec has an address for (s3://, gs://, hdfs://, memory:// ...).

Such places often can't rename, so a copy is complete when its manifest is there, which is written last. Copies are
never deleted here.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

from trireme.checkpoint.commit import make_root
from trireme.checkpoint.folder import commit_folder, new_save_id, step_folders
from trireme.checkpoint.manifest import COPY_NAME, MANIFEST_NAME, parse_manifest
from trireme.checkpoint.read import Checkpoint, open_checkpoint
from trireme.checkpoint.record import Manifest
from trireme.errors import CheckpointError


def copy_checkpoint(path: Path, place: str) -> str:
    """Copy a committed checkpoint to ``place/step-N`` and return where it is now.

    Raises:
        CheckpointError: The address needs a library that isn't there.
        OSError: The storage failed; other libraries raise errors of their own.
    """
    if not _is_url(place):
        return str(_copy_local(path, Path(place)))
    files, root = _file_system(place)
    target = f"{root}/{path.name}"
    last = [COPY_NAME, MANIFEST_NAME]
    if files.exists(f"{target}/{MANIFEST_NAME}"):
        # An older one of this step: no copy from now until the new one is whole.
        files.rm(f"{target}/{MANIFEST_NAME}")
    files.makedirs(target, exist_ok=True)
    names = sorted(each.name for each in path.iterdir() if each.name not in last)
    for name in [*names, *last]:
        files.put_file(str(path / name), f"{target}/{name}")
        if files.size(f"{target}/{name}") != (path / name).stat().st_size:
            raise OSError(f"{target}/{name}")
    return f"{place.rstrip('/')}/{path.name}"


def check_place(place: str, *, root: Path) -> None:
    """Raise unless copies of the checkpoints in ``root`` can go to a place; makes its folder.

    Raises:
        CheckpointError: It is the root itself, can't be written to, or its address means nothing here.
    """
    if not _is_url(place) and Path(place).resolve() == root.resolve():
        raise CheckpointError("checkpoint.copy_onto_itself", place=place)
    try:
        if _is_url(place):
            files, folder = _file_system(place)
            files.makedirs(folder, exist_ok=True)
        else:
            Path(place).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=place):
                pass
    except CheckpointError:
        raise
    except Exception as error:  # libraries of storage raise errors of their own
        raise CheckpointError("checkpoint.copy_place", place=place, reason=error) from error


def fetch_newest(
    place: str, root: Path, *, run_id: str | None = None, notice: Callable[[str], None]
) -> Checkpoint | None:
    """Bring the newest whole copy into the checkpoint root, verified; None if there is none.

    A copy that is not whole or not good is named in a notice and the one before is tried.
    """
    found = _manifests(place)
    if run_id is not None:
        found = {name: manifest for name, manifest in found.items() if manifest.run_id == run_id}
    for name, manifest in sorted(found.items(), key=lambda each: -each[1].sequence):
        folder = root / f"{name}.inprogress-{new_save_id()}"
        make_root(root)
        try:
            _fetch(place, name, folder)
            commit_folder(folder, root / name, manifest.save_id)
            return open_checkpoint(root / name, notice=notice)
        except (CheckpointError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            notice(str(error))
    return None


def _copy_local(path: Path, place: Path) -> Path:
    make_root(place)
    save_id = new_save_id()
    folder = place / f"{path.name}.inprogress-{save_id}"
    try:
        shutil.copytree(path, folder)
        for each in folder.iterdir():
            _sync(each)
        commit_folder(folder, place / path.name, save_id)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return place / path.name


def _manifests(place: str) -> dict[str, Manifest]:
    """Return the manifests of the whole copies in a place, by the name of their folder."""
    if not _is_url(place):
        paths = {
            folder.path.name: folder.path / MANIFEST_NAME for folder in step_folders(Path(place)) if not folder.kind
        }
        texts = {name: path.read_bytes() for name, path in paths.items() if path.is_file()}
    else:
        files, root = _file_system(place)
        listed = files.ls(root, detail=False) if files.exists(root) else []
        names = [PurePosixPath(each).name for each in listed]
        names = [name for name in names if files.exists(f"{root}/{name}/{MANIFEST_NAME}")]
        texts = {name: files.cat_file(f"{root}/{name}/{MANIFEST_NAME}") for name in names}
    found = {}
    for name, text in texts.items():
        try:
            found[name] = parse_manifest(text, path=Path(place) / name / MANIFEST_NAME)
        except CheckpointError:
            continue
    return found


def _fetch(place: str, name: str, folder: Path) -> None:
    if not _is_url(place):
        shutil.copytree(Path(place) / name, folder)
    else:
        files, root = _file_system(place)
        folder.mkdir()
        for each in files.ls(f"{root}/{name}", detail=False):
            files.get_file(each, str(folder / PurePosixPath(each).name))
    for each in folder.iterdir():
        _sync(each)


def _file_system(place: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs

        files, root = url_to_fs(place)
    except ImportError as error:
        raise CheckpointError("checkpoint.no_fsspec", place=place, reason=error) from error
    return files, str(root).rstrip("/")


def _is_url(place: str) -> bool:
    return "://" in place


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())
