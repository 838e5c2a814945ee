"""The tokenizer of a run: the one that is named, or one learned from the sources and kept in the cache."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from trireme.config import DataSection, SourceSection
from trireme.data.cache import content_hash, locked, make_folder
from trireme.data.document import Document, SourceCounts
from trireme.data.progress import Progress, Silent
from trireme.data.reader import DocumentReader, choose_field
from trireme.data.scan import scan_file
from trireme.data.shard import disk_errors, sync_folder, write_durably
from trireme.data.source import ResolvedSource, resolve_source
from trireme.data.tokenizer import Tokenizer
from trireme.data.tokenizer_folder import load_tokenizer
from trireme.data.tokenizer_train import TRAINER_VERSION, train_tokenizer
from trireme.errors import DataError
from trireme.units import format_bytes
from trireme.words import say

SAMPLE_BYTES = 64 << 20
"""Text a tokenizer is learned from; more changes little and costs memory."""
_SAMPLE_FILES = 1000
_NOTE_NAME = "fingerprint.txt"

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSample:
    """The sources a tokenizer is learned from, with the share of the limit that each file may give."""

    sources: tuple[ResolvedSource, ...]
    sections: tuple[SourceSection, ...]
    limit_bytes: int
    on_bad_record: str

    @property
    def size_bytes(self) -> int:
        """Bytes on disk of all sources."""
        return sum(source.size_bytes for source in self.sources)

    def documents(self) -> Iterator[Document]:
        """Yield documents from the start of each file, as many bytes as are its share; the same every time."""
        for resolved, section in zip(self.sources, self.sections, strict=True):
            yield from self._documents_of(resolved, section)

    def _documents_of(self, resolved: ResolvedSource, section: SourceSection) -> Iterator[Document]:
        reader = DocumentReader(section, on_bad_record=self.on_bad_record)
        reader.text_field = choose_field(reader, resolved).name
        left_records = resolved.max_records
        stride = -(-len(resolved.files) // _SAMPLE_FILES)
        for file in resolved.files[::stride]:
            left_bytes = self.limit_bytes * file.size_bytes * stride / self.size_bytes
            counts = SourceCounts()
            for document in self._documents_in(file, section, reader, counts):
                if left_records is not None and counts.records > left_records:
                    return
                yield document
                left_bytes -= len(document.text.encode()) + len(document.prompt.encode())
                if left_bytes <= 0 and self.limit_bytes < self.size_bytes:
                    break
            left_records = None if left_records is None else left_records - counts.records

    @staticmethod
    def _documents_in(file: Any, section: SourceSection, reader: DocumentReader, counts: SourceCounts) -> Any:
        for part in scan_file(file, source=section, part_bytes=1 << 20):
            yield from reader.read(part, counts)


def take_sample(data: DataSection, *, limit_bytes: int = SAMPLE_BYTES) -> TextSample:
    """Settle what a tokenizer for ``data`` is learned from."""
    return TextSample(
        sources=tuple(resolve_source(section.path) for section in data.sources),
        sections=data.sources,
        limit_bytes=limit_bytes,
        on_bad_record=data.on_bad_record,
    )


def resolve_tokenizer(
    data: DataSection, *, cache_dir: Path, progress: Progress | None = None, notice: Notice | None = None
) -> Tokenizer:
    """Return the tokenizer that ``data.tokenizer`` names, else one learned from the sources, cached by content.

    Raises:
        DataError: It can't be loaded, or the sources can't be read or hold no text.
    """
    if data.tokenizer:
        given = load_tokenizer(data.tokenizer)
        if notice and given.loses:
            notice(say(f"data.tokenizer_{given.loses}", tokenizer=given.origin))
        return given
    sample = take_sample(data)
    folder = cache_dir / "tokenizers" / _key(data, sample, cache_dir=cache_dir)
    tokenizer = _open_trained(folder)
    if tokenizer is None:
        make_folder(folder.parent)
        with locked(folder.with_suffix(".lock")):
            tokenizer = _open_trained(folder) or _train_into(folder, data, sample, progress, notice)
    if notice and tokenizer.vocab_size < data.tokenizer_vocab_size:
        notice(say("data.vocab_not_filled", found=tokenizer.vocab_size, asked=data.tokenizer_vocab_size))
    return tokenizer


def _key(data: DataSection, sample: TextSample, *, cache_dir: Path) -> str:
    contents: list[Any] = [TRAINER_VERSION, data.tokenizer_vocab_size, data.on_bad_record, sample.limit_bytes]
    for resolved, section in zip(sample.sources, sample.sections, strict=True):
        options = section.model_dump(exclude={"path", "weight"}) | {"max_records": resolved.max_records}
        reader = DocumentReader(section, on_bad_record=data.on_bad_record)
        options["map_source"] = reader.map.fingerprint if reader.map else None
        contents += [options, [content_hash(file.path, cache_dir=cache_dir) for file in resolved.files]]
    return xxhash.xxh3_128_hexdigest(json.dumps(contents, sort_keys=True).encode())


def _open_trained(folder: Path) -> Tokenizer | None:
    """Return a tokenizer trained earlier if its folder still holds exactly that one."""
    try:
        noted = (folder / _NOTE_NAME).read_text(encoding="ascii").strip()
        tokenizer = load_tokenizer(folder)
    except (OSError, ValueError, DataError):
        return None
    return tokenizer if tokenizer.fingerprint == noted else None


def _train_into(
    folder: Path, data: DataSection, sample: TextSample, progress: Progress | None, notice: Notice | None
) -> Tokenizer:
    listener = progress or Silent()
    listener.start(say("data.training_tokenizer"), None)
    try:
        texts = _texts(sample.documents())
        tokenizer = train_tokenizer(texts, vocab_size=data.tokenizer_vocab_size, progress=listener)
    finally:
        listener.finish()
    if notice and sample.size_bytes > sample.limit_bytes:
        sizes = {"read": format_bytes(sample.limit_bytes), "total": format_bytes(sample.size_bytes)}
        notice(say("data.tokenizer_sampled", **sizes))
    draft = folder.with_suffix(".draft")
    with disk_errors(folder, needed_bytes=len(tokenizer.text)):
        for stale in (draft, folder):
            shutil.rmtree(stale, ignore_errors=True)
        tokenizer.save(draft)
        write_durably(draft / _NOTE_NAME, tokenizer.fingerprint.encode())
        draft.rename(folder)
        sync_folder(folder.parent)
    return load_tokenizer(folder)


def _texts(documents: Iterator[Document]) -> Iterator[str]:
    for document in documents:
        if document.prompt:
            yield document.prompt
        yield document.text


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerReport:
    """A tokenizer and how well it fits the text it was measured on."""

    tokenizer: Tokenizer
    documents: int
    characters: int
    text_bytes: int
    tokens: int
    round_trip_ok: bool
    """Whether every document came back from its tokens exactly."""
    first_difference: str
    """Where the first document stands that did not."""

    @property
    def characters_per_token(self) -> float:
        """Characters a token stands for; higher means shorter sequences."""
        return self.characters / max(self.tokens, 1)

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes a token stands for."""
        return self.text_bytes / max(self.tokens, 1)


def train_tokenizer_on(
    data: DataSection,
    *,
    vocab_size: int | None = None,
    words: Sequence[str] = (),
    limit_bytes: int = SAMPLE_BYTES,
    progress: Progress | None = None,
) -> TokenizerReport:
    """Learn a tokenizer from the sources of ``data`` and measure it on the same text.

    Raises:
        DataError: The sources can't be read or hold no text, or the vocabulary has no room for the words.
    """
    listener = progress or Silent()
    sample = take_sample(data, limit_bytes=limit_bytes)
    listener.start(say("data.training_tokenizer"), None)
    try:
        texts = _texts(sample.documents())
        size = vocab_size or data.tokenizer_vocab_size
        tokenizer = train_tokenizer(texts, vocab_size=size, words=words, progress=listener)
    finally:
        listener.finish()
    return measure_tokenizer(tokenizer, sample.documents())


def measure_tokenizer(tokenizer: Tokenizer, documents: Iterator[Document]) -> TokenizerReport:
    """Encode and decode every document and count."""
    num_documents = characters = text_bytes = tokens = 0
    difference = ""
    for document in documents:
        ids = tokenizer.encode(document.text)
        if not difference and tokenizer.decode(ids, skip_special=False) != document.text:
            difference = document.where
        num_documents += 1
        characters += len(document.text)
        text_bytes += len(document.text.encode())
        tokens += len(ids)
    return TokenizerReport(
        tokenizer=tokenizer,
        documents=num_documents,
        characters=characters,
        text_bytes=text_bytes,
        tokens=tokens,
        round_trip_ok=not difference,
        first_difference=difference,
    )
