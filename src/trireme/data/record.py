"""Parts to records: each a dict and the place it stands, or a flaw that says what is wrong there."""

from __future__ import annotations

import ast
import io
import itertools
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trireme.data.encoding import decode_text
from trireme.data.parquet import read_rows
from trireme.data.scan import Part
from trireme.data.tfrecord import WireError, parse_example, read_frames
from trireme.errors import DataError

TEXT_KINDS = frozenset({"text", "paragraphs", "lines", "python", "topics", "docstring"})
"""Kinds whose records are plain text: one field named ``text``, nothing to choose."""
_BLANK_LINES = re.compile(r"\r?\n(?:[ \t]*\r?\n)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record as its file has it."""

    value: dict[str, Any]
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """A record that can't be used: dropped and counted under ``reason``, or raised."""

    reason: str
    """Key of the catalogue page ``data`` without its ``drop_``."""
    where: str
    error: DataError | None = None
    """None where dropping is what was asked: an empty text, a map that returned None."""


def read_records(part: Part, *, columns: tuple[str, ...] | None = None) -> Iterator[Record | Flaw]:
    """Yield the records of a part in order; ``columns`` spares reading the other columns of a parquet file."""
    match part.kind:
        case "parquet":
            records = _rows(part, columns)
        case "tfrecord":
            records = _examples(part)
        case "jsonl":
            records = _json_lines(part)
        case "json":
            records = _json_list(part)
        case "lines":
            records = _text_lines(part)
        case _:
            records = _texts(part)
    return records if part.max_records is None else itertools.islice(records, part.max_records)


def count_records(part: Part) -> int:
    """Return how many records a part holds, flawed ones too."""
    if part.kind == "parquet":
        return part.num_rows
    return sum(1 for _ in read_records(part))


def _lines(part: Part) -> Iterator[tuple[int, str] | Flaw]:
    """Yield (line number, text) of each line that isn't blank."""
    offset = part.offset
    for number, raw in enumerate(part.content.split(b"\n"), start=part.first_record):
        try:
            line = decode_text(raw, encoding=part.encoding, path=part.path, offset=offset, around=part.content)
        except DataError as error:
            yield Flaw(reason=_reason(error), where=f"{part.path}:{number}", error=error)
        else:
            if line.strip():
                yield number, line.removesuffix("\r")
        offset += len(raw) + 1


def _reason(error: DataError) -> str:
    return "binary" if error.key == "data.binary_file" else "bad_encoding"


def _decoded_lines(part: Part) -> Iterator[tuple[int, str] | Flaw]:
    """As ``_lines``, also where an encoding's line ends are no single bytes."""
    if "\n".encode(part.encoding) == b"\n":
        yield from _lines(part)
        return
    try:
        text = decode_text(part.content, encoding=part.encoding, path=part.path, offset=part.offset)
    except DataError as error:
        yield Flaw(reason=_reason(error), where=str(part.path), error=error)
        return
    for number, line in enumerate(text.split("\n"), start=part.first_record):
        if line.strip():
            yield number, line.removesuffix("\r")


def _text_lines(part: Part) -> Iterator[Record | Flaw]:
    for line in _decoded_lines(part):
        if isinstance(line, Flaw):
            yield line
        else:
            yield Record(value={"text": line[1]}, where=f"{part.path}:{line[0]}")


def _json_lines(part: Part) -> Iterator[Record | Flaw]:
    for line in _decoded_lines(part):
        if isinstance(line, Flaw):
            yield line
        else:
            yield _json_record(line[1], where=f"{part.path}:{line[0]}")


def _json_record(text: str, *, where: str) -> Record | Flaw:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        return Flaw(
            reason="not_json",
            where=where,
            error=DataError("data.bad_line", where=where, reason=reason, line=_cut(text)),
        )
    return _object_record(value, where=where)


def _object_record(value: Any, *, where: str) -> Record | Flaw:
    if isinstance(value, dict):
        return Record(value=value, where=where)
    kind = {list: "list", str: "text", type(None): "null", bool: "bool"}.get(type(value), "number")
    return Flaw(reason="not_object", where=where, error=DataError("data.not_object", where=where, found=kind))


def _cut(text: str, limit: int = 60) -> str:
    """Return the beginning of a line as a message can show it: a line of the file may hold other line ends."""
    shown = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:limit])
    return shown if len(text) <= limit else shown + "…"


def _json_list(part: Part) -> Iterator[Record | Flaw]:
    try:
        text = decode_text(part.content, encoding=part.encoding, path=part.path, offset=0)
        values = json.loads(text)
    except DataError as error:
        yield Flaw(reason=_reason(error), where=str(part.path), error=error)
        return
    except (ValueError, RecursionError) as error:
        raise DataError("data.bad_json", path=part.path, reason=str(error)) from error
    if not isinstance(values, list):
        raise DataError("data.json_not_list", path=part.path)
    for number, value in enumerate(values, start=1):
        yield _object_record(value, where=f"{part.path} #{number}")


def _rows(part: Part, columns: tuple[str, ...] | None) -> Iterator[Record | Flaw]:
    rows = read_rows(part.path, row_group=part.row_group, columns=columns)
    for number, row in enumerate(rows, start=part.first_record):
        yield Record(value=row, where=f"{part.path} #{number}")


def _examples(part: Part) -> Iterator[Record | Flaw]:
    for number, frame in enumerate(read_frames(part.content), start=part.first_record):
        where = f"{part.path} #{number}"
        if not frame.whole:
            error = DataError("data.tfrecord_checksum", where=where)
            yield Flaw(reason="bad_checksum", where=where, error=error)
            continue
        try:
            features = parse_example(frame.data)
        except WireError as wire:
            yield Flaw(reason="not_example", where=where, error=DataError("data.not_example", where=where, reason=wire))
            continue
        yield Record(value={k: _feature_value(v, part.encoding) for k, v in features.items()}, where=where)


def _feature_value(values: list[Any], encoding: str) -> Any:
    """Return a single value bare and bytes as text where they are text, as other formats give them."""
    found = [_text_or_bytes(value, encoding) if isinstance(value, bytes) else value for value in values]
    return found[0] if len(found) == 1 else found


def _text_or_bytes(value: bytes, encoding: str) -> str | bytes:
    try:
        return value.decode(encoding)
    except UnicodeDecodeError:
        return value


def _texts(part: Part) -> Iterator[Record | Flaw]:
    try:
        text = _decode_whole(part)
    except DataError as error:
        yield Flaw(reason=_reason(error), where=str(part.path), error=error)
        return
    if part.kind == "topics":
        yield from _topics(part, text)
    elif part.kind == "docstring":
        yield from _docstring(part, text)
    elif part.kind == "paragraphs":
        yield from _paragraphs(part, text)
    else:
        yield Record(value={"text": text}, where=str(part.path))


def _decode_whole(part: Part) -> str:
    if part.kind in ("python", "docstring"):
        encoding, _ = tokenize.detect_encoding(io.BytesIO(part.content).readline)
        return decode_text(part.content, encoding=encoding, path=part.path, offset=0)
    return decode_text(part.content, encoding=part.encoding, path=part.path, offset=part.offset)


def _paragraphs(part: Part, text: str) -> Iterator[Record]:
    line, place = part.first_record, 0
    for gap in itertools.chain(_BLANK_LINES.finditer(text), [None]):
        block = text[place : gap.start() if gap else len(text)].strip("\r\n")
        if block.strip():
            yield Record(value={"text": block}, where=f"{part.path}:{line}")
        if gap:
            line += text.count("\n", place, gap.end())
            place = gap.end()


def _topics(part: Part, text: str) -> Iterator[Record]:
    """``pydoc_data.topics`` is one assignment of a dict of texts."""
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
            for name, topic in ast.literal_eval(statement.value).items():
                yield Record(value={"text": topic.strip() + "\n"}, where=f"{part.path} {name}")


def _docstring(part: Part, text: str) -> Iterator[Record]:
    """All docstrings of a module, in the order they stand, as one text."""
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in _in_order(ast.parse(text)) if isinstance(node, holders)]
    texts = [docstring.strip() for docstring in found if docstring]
    if texts:
        yield Record(value={"text": "\n\n".join(texts) + "\n"}, where=str(part.path))


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _in_order(child)
