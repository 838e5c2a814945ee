"""Records to documents: the map function, the field that holds the text, the policy for bad records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trireme.config import SourceSection
from trireme.data.document import Document, SourceCounts
from trireme.data.encoding import check_encoding
from trireme.data.mapping import MapFunction, error_place, load_map
from trireme.data.record import TEXT_KINDS, Flaw, Record, read_records
from trireme.data.scan import Part, record_kind, scan_file, scan_source
from trireme.data.source import ResolvedSource, resolve_source
from trireme.errors import DataError

TEXT_FIELD_NAMES = ("text", "content", "raw_content", "document", "body", "正文", "内容", "文本")
"""Fields that hold the text by custom. Exactly one of them in a record settles it; else the only field of text."""
_PEEK_BYTES = 1 << 16
_PEEK_RECORDS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TextField:
    """The field that holds the text and how it was chosen: ``named``, ``custom``, ``only`` or ``plain``."""

    name: str
    how: str


class DocumentReader:
    """Reads the documents of one source; made once a process, the same everywhere.

    Raises:
        DataError: The map function or the encoding doesn't exist.
    """

    def __init__(self, source: SourceSection, *, on_bad_record: str, text_field: str = "") -> None:
        check_encoding(source.encoding)
        self.source = source
        self.on_bad_record = on_bad_record
        self.text_field = text_field
        self.map: MapFunction | None = load_map(source.map) if source.map else None

    def read(self, part: Part, counts: SourceCounts) -> Iterator[Document]:
        """Yield the documents of a part and count every record.

        Raises:
            DataError: A record is bad and the policy is to stop.
        """
        for record in read_records(part, columns=self._columns()):
            found = record if isinstance(record, Flaw) else self.document(record, kind=part.kind)
            if isinstance(found, Flaw):
                if found.error is not None and self.on_bad_record == "stop":
                    raise found.error
                counts.drop(found.reason, where=found.where)
            else:
                counts.records += 1
                counts.documents += 1
                counts.characters += len(found.text) + len(found.prompt)
                yield found

    def _columns(self) -> tuple[str, ...] | None:
        if self.map or not self.text_field:
            return None
        return tuple(name for name in (self.source.prompt_field, self.text_field) if name)

    def document(self, record: Record, *, kind: str) -> Document | Flaw:
        """Return the document of one record, or what is wrong with it."""
        value: Any = record.value
        if self.map is not None:
            value = self.mapped(record)
            if value is None or isinstance(value, Flaw):
                return value or Flaw(reason="map_none", where=record.where)
        if isinstance(value, str):
            value, name = {"text": value}, "text"
        else:
            plain = kind in TEXT_KINDS and self.map is None and not self.source.field
            name = "text" if plain else self.text_field
        return self._taken(value, name, where=record.where)

    def _taken(self, value: dict[str, Any], name: str, *, where: str) -> Document | Flaw:
        text = _text_of(value, name, where=where)
        if isinstance(text, Flaw):
            return text
        prompt = _text_of(value, self.source.prompt_field, where=where) if self.source.prompt_field else ""
        if isinstance(prompt, Flaw):
            return prompt
        if not text.strip():
            return Flaw(reason="empty", where=where)
        return Document(text=text, prompt=prompt, where=where)

    def mapped(self, record: Record) -> Any:
        """Call the user's function; whatever it raises names the record and the line of the function."""
        assert self.map is not None
        code = getattr(self.map.function, "__code__", None)
        try:
            value = self.map.function(dict(record.value))
        except (Exception, SystemExit) as error:  # a function that leaves would end the program without a word
            place = error_place(error, function_file=code.co_filename if code else None)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            values = {"where": record.where, "spec": self.map.spec, "reason": reason, "place": place or self.map.spec}
            return Flaw(reason="map_failed", where=record.where, error=DataError("data.map_raised", **values))
        if value is None or isinstance(value, (str, dict)):
            return value
        kind = type(value).__name__
        wrong = DataError("data.map_returned", where=record.where, spec=self.map.spec, kind=kind)
        return Flaw(reason="map_failed", where=record.where, error=wrong)


def _text_of(value: dict[str, Any], name: str, *, where: str) -> str | Flaw:
    if name not in value:
        fields = ", ".join(map(str, value)) or "-"
        error = DataError("data.missing_field", where=where, field=name, fields=fields)
        return Flaw(reason="missing_field", where=where, error=error)
    text = value[name]
    if not isinstance(text, str):
        error = DataError("data.not_text", where=where, field=name, kind=_kind_of(text))
        return Flaw(reason="not_text", where=where, error=error)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as found:
            values = {"where": where, "field": name, "character": f"U+{ord(text[found.start]):04X}"}
            return Flaw(reason="surrogate", where=where, error=DataError("data.surrogate", **values))
    return text


def _kind_of(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def choose_field(reader: DocumentReader, resolved: ResolvedSource) -> TextField:
    """Return the field that holds the text, judged by the first good record that shows it.

    Raises:
        DataError: No rule settles which field it is.
    """
    source = reader.source
    if source.field:
        return TextField(name=source.field, how="named")
    doubtful: Record | None = None
    for record in _first_records(resolved, source, plain_too=reader.map is not None):
        value = reader.mapped(record) if reader.map else record.value
        if isinstance(value, str):
            return TextField(name="text", how="plain")
        if isinstance(value, dict):
            if _shows_text(value, prompt_field=source.prompt_field):
                return _choose(value, prompt_field=source.prompt_field, where=record.where)
            doubtful = doubtful or Record(value=value, where=record.where)
        if isinstance(value, Flaw) and value.error is not None and reader.on_bad_record == "stop":
            raise value.error
    if doubtful is not None:
        return _choose(doubtful.value, prompt_field=source.prompt_field, where=doubtful.where)
    return TextField(name="text", how="plain")


def _shows_text(value: dict[str, Any], *, prompt_field: str | None) -> bool:
    """Say whether a record may settle the field: not one whose ``text`` is null, or with no text at all."""
    usual = [name for name in TEXT_FIELD_NAMES if name in value and name != prompt_field]
    texts = [name for name, content in value.items() if isinstance(content, str) and name != prompt_field]
    return bool(texts) and (not usual or any(name in texts for name in usual))


def _choose(value: dict[str, Any], *, prompt_field: str | None, where: str) -> TextField:
    texts = [name for name, content in value.items() if isinstance(content, str) and name != prompt_field]
    usual = [name for name in TEXT_FIELD_NAMES if name in texts]
    if len(usual) == 1:
        return TextField(name=usual[0], how="custom")
    if not usual and len(texts) == 1:
        return TextField(name=texts[0], how="only")
    fields = ", ".join(map(str, value)) or "-"
    key = "data.field_ambiguous" if texts else "data.field_none"
    raise DataError(key, where=where, fields=fields, candidates=", ".join(usual or texts))


def _first_records(resolved: ResolvedSource, source: SourceSection, *, plain_too: bool) -> Iterator[Record]:
    """Yield some good records; those that are plain text only if a map function may give them fields."""
    seen = 0
    for file in resolved.files:
        if not plain_too and record_kind(file, source) in TEXT_KINDS:
            continue
        for part in scan_file(file, source=source, part_bytes=_PEEK_BYTES):
            for record in read_records(part):
                if isinstance(record, Record):
                    yield record
                seen += 1
                if seen >= _PEEK_RECORDS:
                    return


def read_documents(
    source: SourceSection, *, on_bad_record: str = "stop", counts: SourceCounts | None = None
) -> Iterator[Document]:
    """Yield the documents of a source in order, in this process.

    Raises:
        DataError: Anything in the source that can't be read exactly, as the policy has it.
    """
    counts = SourceCounts() if counts is None else counts
    resolved = resolve_source(source.path)
    reader = DocumentReader(source, on_bad_record=on_bad_record)
    reader.text_field = choose_field(reader, resolved).name
    for part in scan_source(resolved, source=source, part_bytes=1 << 20):
        yield from reader.read(part, counts)
