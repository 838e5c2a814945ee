"""A rank's part of a save, from bytes in memory to a committed folder; the leading rank's part commits it.

Ranks meet in the unfinished folder: each leaves a record of what it wrote, the leading one waits for all of them.
Every act may be done again: after a kill the same order is given to a new writer and comes to the same end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trireme.checkpoint.commit import (
    commit_save,
    fill_manifest,
    next_in_line,
    no_space,
    older_manifests,
    write_manifests,
)
from trireme.checkpoint.errno_kind import FULL_ERRORS, HOPELESS_ERRORS
from trireme.checkpoint.fault import WriteFault
from trireme.checkpoint.manifest import MANIFEST_NAME, parse_manifest
from trireme.checkpoint.order import ArenaPart, LeadOrder, RankRecord, WriteOrder, read_record, record_json
from trireme.checkpoint.prune import prune_checkpoints
from trireme.checkpoint.shard import ShardEntry, WrittenShard, write_shard
from trireme.checkpoint.unchanged import Unchanged
from trireme.errors import CheckpointError
from trireme.words import say

Source = Callable[[ArenaPart], memoryview]
Tell = Callable[..., None]
"""Called as ``tell(event, **values)``: ``written``, ``committed``, ``failed``, ``note``, ``alive``."""

_LOOK_S = 0.02
_LOOK_LONGER_S = 0.25


class Writer:
    """Carries out orders, one after the other."""

    def __init__(self, *, tell: Tell, fault: WriteFault | None = None) -> None:
        self._tell = tell
        self._fault = fault or WriteFault.from_environ()
        self._unchanged = Unchanged()

    def carry_out(self, order: WriteOrder, source: Source) -> None:
        """Write a rank's part and, leading, commit the whole; tells how it ended and raises nothing of the storage."""
        record = self._write_part(order, source)
        self._tell("written" if record.error is None else "note", text=record.error or "")
        if order.lead is None:
            return
        try:
            target = self._commit(order, order.lead)
        except (CheckpointError, OSError) as error:
            shutil.rmtree(order.folder, ignore_errors=True)
            self._tell("failed", text=str(error))
            return
        self._tell("committed", path=str(target))
        self._keep_house(order, order.lead, target)

    def _write_part(self, order: WriteOrder, source: Source) -> RankRecord:
        known = _read_record_of(order.folder, order.rank)
        if known is not None or (order.folder / MANIFEST_NAME).exists():
            return known or RankRecord(retries=0)
        record = self._try_to_write(order, source)
        if order.folder.is_dir():  # the leading rank may have given up
            with contextlib.suppress(OSError):
                _leave_record(order.folder, order.rank, record)
        return record

    def _try_to_write(self, order: WriteOrder, source: Source) -> RankRecord:
        for attempt in range(order.max_retries + 1):
            try:
                return RankRecord(retries=attempt, shards=self._write_shards(order, source))
            except OSError as error:
                problem = _explain(error, order, attempts=attempt + 1)
                if problem is not None or attempt == order.max_retries:
                    return RankRecord(retries=attempt, error=problem)
                self._wait_before_retry(order, attempt=attempt, error=error)
        raise AssertionError("the last attempt returns")

    def _wait_before_retry(self, order: WriteOrder, *, attempt: int, error: OSError) -> None:
        wait_s = order.backoff_s * 2**attempt
        left, path = order.max_retries - attempt, order.folder
        self._tell("note", text=say("checkpoint.save_retry", path=path, reason=error, left=left, wait_s=wait_s))
        time.sleep(wait_s)

    def _write_shards(self, order: WriteOrder, source: Source) -> tuple[WrittenShard, ...]:
        written = []
        for name, parts in _files(order):
            path = order.folder / name
            path.unlink(missing_ok=True)
            entries = [_entry(part, source) for part in parts]
            frozen = parts[0].frozen if parts else False
            shard = self._unchanged.link(path, entries, run_id=order.run_id) if frozen else None
            if shard is None:
                self._fault.begin(path)
                shard = write_shard(path, entries, save_id=order.save_id, on_piece=self._on_piece)
                if frozen:
                    self._unchanged.remember(path, entries, shard, save_id=order.save_id)
            written.append(shard)
        return tuple(written)

    def _on_piece(self, file: object, size_bytes: int) -> None:
        self._tell("alive")
        self._fault.on_piece(file)

    def _commit(self, order: WriteOrder, lead: LeadOrder) -> Path:
        target = order.folder.with_name(f"step-{lead.manifest.step}")
        if not order.folder.exists() and _save_id_of(target) == order.save_id:
            return target  # it was done; only the answer was lost
        records = self._await_all(order, lead)
        if records:
            self._write_manifests(order, lead, records=records, target=target)
        for rank in range(lead.num_ranks):
            _record_path(order.folder, rank).unlink(missing_ok=True)
        manifest = parse_manifest((order.folder / MANIFEST_NAME).read_bytes(), path=order.folder / MANIFEST_NAME)
        self._fault.before_commit(order.folder)
        commit_save(order.folder, target, manifest)
        self._unchanged.moved(order.folder, target)
        return target

    def _write_manifests(self, order: WriteOrder, lead: LeadOrder, *, records: list[RankRecord], target: Path) -> None:
        blank = next_in_line(lead.manifest, target=target, older=older_manifests(target.parent))
        retries = max(record.retries for record in records)
        shards = [shard for record in records for shard in record.shards]
        manifest = fill_manifest(blank, save_id=order.save_id, retries=retries, tensors=lead.tensors, shards=shards)
        for attempt in range(order.max_retries + 1):
            for leftover in order.folder.glob("manifest*"):
                leftover.unlink()
            try:
                self._fault.begin(order.folder / MANIFEST_NAME)
                write_manifests(order.folder, replace(manifest, save_retries=max(retries, attempt)))
                return
            except OSError as error:
                problem = _explain(error, order, attempts=attempt + 1)
                if problem is not None or attempt == order.max_retries:
                    raise
                self._wait_before_retry(order, attempt=attempt, error=error)

    def _await_all(self, order: WriteOrder, lead: LeadOrder) -> list[RankRecord]:
        """Return every rank's record; nothing if the manifest is there already.

        Raises:
            CheckpointError: A rank could not write its part, or did not in time.
        """
        waiting, found = set(range(lead.num_ranks)), {}
        begun_s = time.monotonic()
        while waiting:
            for rank in sorted(waiting):
                record = _read_record_of(order.folder, rank)
                if record is not None and record.error is not None:
                    raise CheckpointError("checkpoint.rank_failed", rank=rank, reason=record.error)
                if record is not None:
                    found[rank] = record
            waiting -= found.keys()
            if waiting and (order.folder / MANIFEST_NAME).exists():
                return []
            waited_s = time.monotonic() - begun_s
            if waiting and waited_s > order.others_s:
                raise CheckpointError("checkpoint.rank_late", rank=min(waiting), waited_s=round(waited_s))
            if waiting:
                self._tell("alive")
                time.sleep(_LOOK_S if waited_s < 1 else _LOOK_LONGER_S)
        return [found[rank] for rank in sorted(found)]

    def _keep_house(self, order: WriteOrder, lead: LeadOrder, target: Path) -> None:
        """Copy what is new to where copies go, and delete what is needless now."""
        if lead.copy_to is not None:
            from trireme.checkpoint.remote import copy_checkpoint

            try:
                place = copy_checkpoint(target, lead.copy_to)
                self._tell("copied", text=say("checkpoint.copied", path=target, place=place))
            except Exception as error:  # whatever a remote file system raises
                text = say("checkpoint.copy_failed", path=target, place=lead.copy_to, reason=error)
                self._tell("note", text=text)
        if lead.retention is not None:
            prune_checkpoints(
                target.parent,
                keep_last=lead.retention.last,
                keep_best=lead.retention.best,
                keep_every=lead.retention.every,
                run_id=order.run_id,
                notice=lambda text: self._tell("note", text=text),
            )


def _files(order: WriteOrder) -> list[tuple[str, list[ArenaPart]]]:
    """Return the files that a rank writes: what is frozen apart, for it may be there already."""
    trained = [part for part in order.parts if not part.frozen]
    frozen = [part for part in order.parts if part.frozen]
    files = [(f"shard-{order.rank:05}.frozen.safetensors", frozen)] if frozen else []
    if trained or (order.rank == 0 and not frozen):
        files.append((f"shard-{order.rank:05}.safetensors", trained))
    return files


def _entry(part: ArenaPart, source: Source) -> ShardEntry:
    return ShardEntry(name=part.name, entry=part.entry, dtype=part.dtype, ranges=part.ranges, data=lambda: source(part))


def _explain(error: OSError, order: WriteOrder, *, attempts: int) -> str | None:
    """Return what to say of an error that no further attempt mends, or of the last attempt's; None: try again."""
    root = order.folder.parent
    if error.errno in FULL_ERRORS:
        return str(no_space(root, needed=sum(part.size_bytes for part in order.parts)))
    if error.errno in HOPELESS_ERRORS:
        return say("checkpoint.unwritable", path=root, reason=error.strerror)
    if attempts > order.max_retries:
        return say("checkpoint.save_failed", path=order.folder, attempts=attempts, reason=error)
    return None


def _record_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05}.done"


def _leave_record(folder: Path, rank: int, record: RankRecord) -> None:
    path = _record_path(folder, rank)
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(record_json(record)), encoding="ascii")
    os.rename(unfinished, path)


def _read_record_of(folder: Path, rank: int) -> RankRecord | None:
    try:
        text = _record_path(folder, rank).read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    return read_record(json.loads(text))


def _save_id_of(target: Path) -> str | None:
    try:
        return parse_manifest((target / MANIFEST_NAME).read_bytes(), path=target).save_id
    except (OSError, CheckpointError):
        return None
