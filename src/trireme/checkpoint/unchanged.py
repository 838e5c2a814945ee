"""Shards that are already there: what a frozen part of a model was at an earlier save, it still is.

The earlier file is linked under its name into the new folder, so each folder has all its files, a copy of a folder
is whole, and deleting the older checkpoint takes nothing from the newer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import xxhash

from trireme.checkpoint.commit import older_manifests
from trireme.checkpoint.record import Manifest, Ranges
from trireme.checkpoint.shard import ShardEntry, WrittenShard

Place = tuple[str, str, str, Ranges]
"""Tensor, entry, dtype and ranges of a slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    path: Path
    shard: WrittenShard
    content: Mapping[Place, str]


class Unchanged:
    """Remembers the last shard of each name; asks the checkpoints on disk the first time."""

    def __init__(self) -> None:
        self._known: dict[str, _Known | None] = {}

    def link(self, path: Path, entries: Sequence[ShardEntry], *, run_id: str) -> WrittenShard | None:
        """Link the earlier shard of this name to ``path`` if it holds just these bytes; None: it must be written."""
        if path.name not in self._known:
            self._known[path.name] = _find(path, run_id=run_id)
        known = self._known[path.name]
        if known is None or not known.path.is_file() or len(known.content) != len(entries):
            return None
        if any(not _holds(known, entry) for entry in entries):
            return None
        try:
            os.link(known.path, path)
        except OSError:
            return None  # another file system, or one without links
        self._known[path.name] = replace(known, path=path)
        return known.shard

    def remember(self, path: Path, entries: Sequence[ShardEntry], shard: WrittenShard, *, save_id: str) -> None:
        """Keep in mind what was written, as a later save will say it: a shard of this one."""
        marked = replace(shard, record=replace(shard.record, save_id=save_id))
        dtypes = {entry.name: entry.dtype for entry in entries}
        self._known[path.name] = _Known(path=path, shard=marked, content=_content(marked, dtypes))

    def moved(self, folder: Path, target: Path) -> None:
        """Hear that a folder got its name."""
        for name, known in self._known.items():
            if known is not None and known.path.parent == folder:
                self._known[name] = replace(known, path=target / name)


def _find(path: Path, *, run_id: str) -> _Known | None:
    """Return the newest shard of this name that the run's checkpoints hold."""
    older = older_manifests(path.parent.parent)
    for folder, manifest in sorted(older.items(), key=lambda each: -each[1].sequence):
        if manifest.run_id == run_id and path.name in manifest.shards:
            return _of_manifest(folder / path.name, manifest)
    return None


def _of_manifest(path: Path, manifest: Manifest) -> _Known:
    record = manifest.shards[path.name]
    tensors = [tensor for tensor in manifest.tensors.values() if tensor.same_as is None]
    slices = tuple((tensor.name, piece) for tensor in tensors for piece in tensor.slices if piece.file == path.name)
    shard = WrittenShard(record=replace(record, save_id=record.save_id or manifest.save_id), slices=slices)
    dtypes = {tensor.name: tensor.dtype for tensor in tensors}
    return _Known(path=path, shard=shard, content=_content(shard, dtypes))


def _content(shard: WrittenShard, dtypes: Mapping[str, str]) -> dict[Place, str]:
    """Return the hash of every slice by what it is."""
    return {(name, piece.entry, dtypes[name], piece.ranges): piece.xxh3 for name, piece in shard.slices}


def _holds(known: _Known, entry: ShardEntry) -> bool:
    digest = known.content.get((entry.name, entry.entry, entry.dtype, entry.ranges))
    return digest is not None and digest == xxhash.xxh3_128_hexdigest(entry.data())
