"""A source to a token store: found in the cache, or built there in parallel, resumable, once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import xxhash

from trireme.config import DataSection, SourceSection
from trireme.data.cache import content_hash, locked, make_folder
from trireme.data.document import SourceCounts
from trireme.data.progress import Progress, Silent
from trireme.data.reader import DocumentReader, TextField, choose_field
from trireme.data.scan import scan_source
from trireme.data.shard import ShardNote, disk_errors, read_note, sync_folder
from trireme.data.shard_build import Block, ShardBuilder, ShardJob, gather_blocks
from trireme.data.shard_worker import ShardWorkers
from trireme.data.source import ResolvedSource, resolve_source
from trireme.data.store import FORMAT_VERSION, INDEX_NAME, DamagedStore, TokenStore, open_store, write_index
from trireme.data.tokenizer import Tokenizer
from trireme.errors import DataError
from trireme.words import say

BUILDER_VERSION = 1
"""Raise it when the same input would give other tokens or other shards; old caches are then left alone."""
IN_PROCESS_BYTES = 2 << 20
"""A smaller source is tokenised here: starting processes takes longer."""
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 4 << 20, 64 << 20
_BLOCKS_WANTED = 256

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildPlan:
    """Everything a build depends on, settled before it starts; ``key`` names it."""

    key: str
    resolved: ResolvedSource
    text_field: TextField
    job: ShardJob
    block_bytes: int
    num_workers: int
    description: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the finished store lies."""
        return self.job.folder.with_suffix("")


def build_store(
    source: SourceSection,
    *,
    data: DataSection,
    tokenizer: Tokenizer,
    cache_dir: Path,
    progress: Progress | None = None,
    notice: Notice | None = None,
) -> TokenStore:
    """Return the tokens of ``source``, from the cache or built now.

    A build that was killed goes on from its finished shards; two processes that want the same store build it once;
    a damaged shard is made again and ``notice`` says so.

    Raises:
        DataError: The source can't be read as it should, gives no document, or the cache can't be written.
    """
    say_it = notice or _ignore
    plan = plan_build(source, data=data, tokenizer=tokenizer, cache_dir=cache_dir)
    _say_choices(plan, say_it)
    with contextlib.suppress(DamagedStore):
        store = open_store(plan.folder)  # before any lock: a shared cache may be read-only
        _say_counts(source.path, store.counts, say_it)
        return store
    make_folder(plan.folder.parent)
    with locked(plan.folder.with_suffix(".lock")):
        store = _build_until_whole(plan, progress or Silent(), say_it)
    _say_counts(source.path, store.counts, say_it)
    return store


def _ignore(_: str) -> None:
    """Whoever wants notices passes a listener."""


def plan_build(source: SourceSection, *, data: DataSection, tokenizer: Tokenizer, cache_dir: Path) -> BuildPlan:
    """Settle what a build depends on and name it by the hash of all that."""
    resolved = resolve_source(source.path)
    reader = DocumentReader(source, on_bad_record=data.on_bad_record)
    field = choose_field(reader, resolved)
    block_bytes = _block_bytes(resolved.size_bytes)
    job = ShardJob(
        folder=cache_dir / "tokens",
        source=source,
        on_bad_record=data.on_bad_record,
        text_field=field.name,
        tokenizer=tokenizer,
        add_bos=_add_special(data.add_bos, tokenizer.bos_id, "add_bos", "begin", tokenizer),
        add_eos=_add_special(data.add_eos, tokenizer.eos_id, "add_eos", "end", tokenizer),
        parse_special=data.parse_special,
    )
    inputs = [[file.kind, file.compression, content_hash(file.path, cache_dir=cache_dir)] for file in resolved.files]
    contents = _contents(job, reader) | {
        "inputs": inputs,
        "max_records": resolved.max_records,
        "block_bytes": block_bytes,
    }
    key = xxhash.xxh3_128_hexdigest(json.dumps(contents, sort_keys=True).encode())
    return BuildPlan(
        key=key,
        resolved=resolved,
        text_field=field,
        job=replace(job, folder=job.folder / f"{key}.building"),
        block_bytes=block_bytes,
        num_workers=_num_workers(data, source, resolved.size_bytes, block_bytes),
        description={"path": source.path, "files": [str(f.path) for f in resolved.files[:100]], **contents},
    )


def _contents(job: ShardJob, reader: DocumentReader) -> dict[str, Any]:
    """Return every option that changes what is in the shards."""
    return {
        "format_version": FORMAT_VERSION,
        "builder_version": BUILDER_VERSION,
        "text_field": job.text_field,
        "prompt_field": job.source.prompt_field,
        "map": [reader.map.spec, reader.map.fingerprint] if reader.map else None,
        "encoding": job.source.encoding,
        "txt_document": job.source.txt_document,
        "on_bad_record": job.on_bad_record,
        "tokenizer": job.tokenizer.fingerprint,
        "add_bos": job.add_bos,
        "add_eos": job.add_eos,
        "parse_special": job.parse_special,
    }


def _add_special(asked: bool | None, token_id: int | None, setting: str, kind: str, tokenizer: Tokenizer) -> bool:
    if asked and token_id is None:
        origin = tokenizer.specials_from
        raise DataError("data.no_special_token", setting=setting, kind=kind, tokenizer=tokenizer.origin, origin=origin)
    return token_id is not None if asked is None else asked


def _block_bytes(size_bytes: int) -> int:
    return min(max(size_bytes // _BLOCKS_WANTED, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES)


def _num_workers(data: DataSection, source: SourceSection, size_bytes: int, block_bytes: int) -> int:
    wanted = data.build_workers or _num_cores()
    only_here = source.map is not None and source.map.startswith("__main__:")  # no other process has that function
    small = size_bytes < IN_PROCESS_BYTES and source.map is None and data.build_workers is None
    return 1 if small or only_here else min(wanted, max(size_bytes // block_bytes, 1) + 1)


def _num_cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _build_until_whole(plan: BuildPlan, progress: Progress, notice: Notice) -> TokenStore:
    """Open the store if another process has built it meanwhile, else build; make again what proves damaged."""
    reason = ""
    for _ in range(3):
        try:
            if plan.folder.exists():
                return open_store(plan.folder)
        except DamagedStore as damage:
            notice(say("data.store_damaged", folder=plan.folder, reason=damage.reason))
            reason = damage.reason
            _reopen_for_building(plan)
        _build(plan, progress, notice)
    try:
        return open_store(plan.folder)
    except DamagedStore as damage:
        raise DataError("data.store_still_damaged", folder=plan.folder, reason=damage.reason or reason) from damage


def _reopen_for_building(plan: BuildPlan) -> None:
    """Turn a damaged store back into a build; shards that are whole will be kept, whatever the index said."""
    with disk_errors(plan.folder, needed_bytes=0):
        (plan.folder / INDEX_NAME).unlink(missing_ok=True)
        if plan.job.folder.exists():
            shutil.rmtree(plan.job.folder)
        plan.folder.rename(plan.job.folder)


def _build(plan: BuildPlan, progress: Progress, notice: Notice) -> None:
    make_folder(plan.job.folder)
    progress.start(say("data.tokenising", path=plan.resolved.name), plan.resolved.size_bytes)
    try:
        notes = _make_shards(plan, progress, notice)
    finally:
        progress.finish()
    counts = SourceCounts()
    for note in notes:
        counts.add(note.counts)
    if not counts.documents:
        reasons = format_reasons(counts) or "-"
        raise DataError("data.no_documents", path=plan.resolved.name, records=counts.records, reasons=reasons)
    tokenizer = plan.job.tokenizer
    about = {"fingerprint": tokenizer.fingerprint, "vocab_size": tokenizer.vocab_size, "origin": tokenizer.origin}
    write_index(plan.job.folder, key=plan.key, notes=notes, tokenizer=about, description=plan.description)
    with disk_errors(plan.folder, needed_bytes=0):
        plan.job.folder.rename(plan.folder)
        sync_folder(plan.folder.parent)


def _make_shards(plan: BuildPlan, progress: Progress, notice: Notice) -> list[ShardNote]:
    notes: dict[int, ShardNote] = {}
    made = 0
    for block, note in _run(plan, _unfinished(plan, notes, progress)):
        notes[block.number] = note
        made += 1
        progress.advance(block.disk_bytes)
    if len(notes) > made:
        notice(say("data.resumed", path=plan.resolved.name, blocks=len(notes) - made))
    return [notes[number] for number in sorted(notes)]


def _unfinished(plan: BuildPlan, notes: dict[int, ShardNote], progress: Progress) -> Iterator[Block]:
    """Yield the blocks without a whole shard; put the notes of the others into ``notes``."""
    parts = scan_source(plan.resolved, source=plan.job.source, part_bytes=plan.block_bytes)
    for block in gather_blocks(parts, block_bytes=plan.block_bytes):
        note = read_note(plan.job.folder, block.number)
        if note is None or note.block != block.fingerprint():
            yield block
        else:
            notes[block.number] = note
            progress.advance(block.disk_bytes)


def _run(plan: BuildPlan, blocks: Iterable[Block]) -> Iterator[tuple[Block, ShardNote]]:
    if plan.num_workers == 1:
        builder = ShardBuilder(plan.job)
        yield from ((block, builder.build(block)) for block in blocks)
        return
    workers = ShardWorkers(plan.job, num_workers=plan.num_workers)
    try:
        yield from workers.build(blocks)
    finally:
        workers.close()


def _say_choices(plan: BuildPlan, notice: Notice) -> None:
    resolved, field = plan.resolved, plan.text_field
    if field.how in ("custom", "only"):
        how = say(f"data.how_{field.how}")
        notice(say("data.field_found", path=resolved.name, field=field.name, how=how))
    if resolved.ignored:
        files = ", ".join(f"{name} ({count})" for name, count in resolved.ignored.items())
        notice(say("data.files_ignored", path=resolved.name, files=files))
    if resolved.empty:
        notice(say("data.files_empty", path=resolved.name, count=len(resolved.empty), first=resolved.empty[0]))


def _say_counts(path: str, counts: SourceCounts, notice: Notice) -> None:
    dropped = sum(counts.dropped.values())
    if dropped:
        reasons = format_reasons(counts)
        notice(say("data.records_dropped", path=path, dropped=dropped, records=counts.records, reasons=reasons))


def format_reasons(counts: SourceCounts) -> str:
    """Return why records gave no document, most frequent first, each with the place of the first."""
    return ", ".join(
        f"{say(f'data.drop_{reason}')} {count} ({counts.first_dropped[reason]})"
        for reason, count in counts.dropped.most_common()
    )
