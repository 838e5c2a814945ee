"""Cut files into parts at record boundaries, cheaply: what one process does so that many can do the rest.

A part holds whole records, still packed in bytes: some lines, some paragraphs, a text file, TFRecord frames.
Of a parquet file it only names a row group. Splitting records, decoding, JSON and mapping are the reader's work.
"""

from __future__ import annotations

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from trireme.config import SourceSection
from trireme.data.source import ResolvedSource, SourceFile
from trireme.data.tfrecord import FrameError, Frames, whole_frames
from trireme.data.unpack import read_chunks
from trireme.errors import DataError

_LONGEST_BLANK_BYTES = 4096  # of a blank line that is found though a read ends inside it
_BLANK_LINE = re.compile(rb"\n[ \t\r]*\n")
WHOLE_FILE_KINDS = frozenset({"text", "json", "python", "topics", "docstring"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Whole records of one file.

    Units:
        offset: unpacked bytes of the file before this part. first_record: counted from 1.
    """

    path: Path
    kind: str
    """text, paragraphs, lines, jsonl, json, parquet, tfrecord, python, topics or docstring."""
    content: bytes = b""
    offset: int = 0
    first_record: int = 1
    row_group: int = 0
    num_rows: int = 0
    max_records: int | None = None
    encoding: str = "utf-8"
    disk_bytes: int = 0
    """Read from the disk for this part, for the progress bar; for parquet the size of the row group."""

    @property
    def work_bytes(self) -> int:
        """About how much there is to do; depends on nothing but the files."""
        return len(self.content) or self.disk_bytes


def scan_source(resolved: ResolvedSource, *, source: SourceSection, part_bytes: int) -> Iterator[Part]:
    """Yield the parts of all files in order, cut off after the source's ``#limit``."""
    parts = (part for file in resolved.files for part in scan_file(file, source=source, part_bytes=part_bytes))
    return parts if resolved.max_records is None else _limited(parts, resolved.max_records)


def _limited(parts: Iterator[Part], limit: int) -> Iterator[Part]:
    from trireme.data.record import count_records

    left = limit
    for part in parts:
        found = count_records(part)
        yield part if found <= left else replace(part, max_records=left)
        left -= min(found, left)
        if not left:
            return


def scan_file(file: SourceFile, *, source: SourceSection, part_bytes: int) -> Iterator[Part]:
    """Yield the parts of one file."""
    kind = record_kind(file, source)
    if kind == "parquet":
        yield from _scan_parquet(file)
    elif kind in WHOLE_FILE_KINDS:
        yield _whole_file(file, kind, source)
    elif kind == "tfrecord":
        yield from _scan_frames(file, source, part_bytes)
    elif _line_ends_are_bytes(source.encoding):
        yield from _scan_lines(file, kind, source, part_bytes)
    else:
        yield _whole_file(file, kind, source)


def record_kind(file: SourceFile, source: SourceSection) -> str:
    """Return how the file's bytes become records: the ``kind`` of its parts."""
    if file.kind == "json":
        return _json_kind(file)
    if file.kind != "txt":
        return file.kind
    return {"file": "text", "paragraph": "paragraphs", "line": "lines"}[source.txt_document]


def _json_kind(file: SourceFile) -> str:
    """A ``.json`` file is a list of objects, or lines of objects under the wrong name."""
    for chunk in read_chunks(file):
        head = chunk.content.removeprefix(codecs.BOM_UTF8).lstrip()
        if head:
            first_line, is_whole, _ = head.partition(b"\n")
            lines = head[:1] == b"{" and (_is_json(first_line) or not is_whole)
            return "jsonl" if lines else "json"
    return "json"


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


def _line_ends_are_bytes(encoding: str) -> bool:
    """Say whether a byte 0x0A is a line end and nothing else: true for UTF-8, GB18030, Big5; false for UTF-16."""
    return "\n".encode(encoding) == b"\n"


def _whole_file(file: SourceFile, kind: str, source: SourceSection) -> Part:
    content = b"".join(chunk.content for chunk in read_chunks(file))
    return Part(path=file.path, kind=kind, content=content, disk_bytes=file.size_bytes, encoding=source.encoding)


def _scan_lines(file: SourceFile, kind: str, source: SourceSection, part_bytes: int) -> Iterator[Part]:
    """Cut at the first line end (or blank line) after ``part_bytes``, wherever the reads happen to end."""
    part = Part(path=file.path, kind=kind, encoding=source.encoding)
    held = bytearray()
    disk_bytes = searched = 0
    for chunk in read_chunks(file):
        held += chunk.content
        disk_bytes += chunk.disk_bytes
        while cut := _first_cut(held, kind, max(part_bytes - 1, searched)):
            part = replace(part, content=bytes(held[:cut]), disk_bytes=disk_bytes)
            yield part
            part, disk_bytes, searched = _next(part), 0, 0
            del held[:cut]
        searched = max(len(held) - _LONGEST_BLANK_BYTES, 0)
    if held:
        yield replace(part, content=bytes(held), disk_bytes=disk_bytes)


def _first_cut(held: bytearray, kind: str, start: int) -> int:
    if kind != "paragraphs":
        return held.find(b"\n", start) + 1
    match = _BLANK_LINE.search(held, start)
    return match.end() if match else 0


def _next(part: Part) -> Part:
    """Place what follows ``part``; its records are numbered by line."""
    found = part.content.count(b"\n")
    return replace(part, content=b"", offset=part.offset + len(part.content), first_record=part.first_record + found)


def _scan_frames(file: SourceFile, source: SourceSection, part_bytes: int) -> Iterator[Part]:
    """Cut at the first frame end after ``part_bytes``."""
    part = Part(path=file.path, kind="tfrecord", encoding=source.encoding)
    held = bytearray()
    disk_bytes = 0
    for chunk in itertools.chain(read_chunks(file), [None]):
        if chunk is not None:
            held += chunk.content
            disk_bytes += chunk.disk_bytes
        while len(held) >= part_bytes or (chunk is None and held):
            frames = _whole_frames(part, held, part_bytes)
            if frames.size_bytes < part_bytes and (chunk is not None or not frames.number):
                break
            yield replace(part, content=bytes(held[: frames.size_bytes]), disk_bytes=disk_bytes)
            part = replace(part, offset=part.offset + frames.size_bytes, first_record=part.first_record + frames.number)
            disk_bytes = 0
            del held[: frames.size_bytes]
    if held:
        raise DataError(
            "data.tfrecord_cut", path=file.path, record=part.first_record, offset=part.offset, found=len(held)
        )


def _whole_frames(part: Part, held: bytearray, enough_bytes: int) -> Frames:
    try:
        return whole_frames(held, enough_bytes=enough_bytes)
    except FrameError as error:
        place = {"record": part.first_record + error.record, "offset": part.offset + error.offset}
        raise DataError("data.tfrecord_damaged", path=part.path, **place) from error


def _scan_parquet(file: SourceFile) -> Iterator[Part]:
    from trireme.data.parquet import row_groups

    first = 1
    for number, group in enumerate(row_groups(file.path)):
        yield Part(
            path=file.path,
            kind="parquet",
            row_group=number,
            num_rows=group.num_rows,
            first_record=first,
            disk_bytes=group.disk_bytes,
        )
        first += group.num_rows
