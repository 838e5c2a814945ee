"""Tokenise one block of parts into one shard: the work that is done in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from trireme.config import SourceSection
from trireme.data.document import Document, SourceCounts
from trireme.data.reader import DocumentReader
from trireme.data.scan import Part
from trireme.data.shard import DOCUMENT_DTYPE, ShardNote, token_dtype, write_shard
from trireme.data.tokenizer import Tokenizer

_BATCH_CHARACTERS = 1 << 19
_BATCH_DOCUMENTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Parts that become one shard."""

    number: int
    parts: tuple[Part, ...]

    @property
    def disk_bytes(self) -> int:
        """Bytes of the source's files that this block stands for."""
        return sum(part.disk_bytes for part in self.parts)

    def fingerprint(self) -> str:
        """xxh3-128 (hex) of what goes into the shard: a shard is kept only if it was made from the same."""
        state = xxhash.xxh3_128()
        for part in self.parts:
            place = (part.kind, part.offset, part.first_record, part.row_group, part.num_rows, part.max_records)
            state.update(repr((*place, len(part.content))).encode())
            state.update(part.content)
        return state.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardJob:
    """All a process needs to make shards of one source: it is handed over whole before the first block."""

    folder: Path
    source: SourceSection
    on_bad_record: str
    text_field: str
    tokenizer: Tokenizer
    add_bos: bool
    add_eos: bool
    parse_special: bool


class ShardBuilder:
    """Makes shards; one a process."""

    def __init__(self, job: ShardJob) -> None:
        self._job = job
        self._reader = DocumentReader(job.source, on_bad_record=job.on_bad_record, text_field=job.text_field)
        self._dtype = token_dtype(job.tokenizer.vocab_size)

    def build(self, block: Block) -> ShardNote:
        """Tokenise a block and write its shard.

        Raises:
            DataError: A bad record under the policy ``stop``, or the disk.
        """
        counts = SourceCounts()
        tokens: list[np.ndarray] = []
        tables: list[np.ndarray] = []
        documents = (document for part in block.parts for document in self._reader.read(part, counts))
        for batch in _batches(documents):
            batch_tokens, table = self._encode(batch, counts)
            tokens.append(batch_tokens)
            tables.append(table)
        documents_table = np.concatenate([np.empty(0, DOCUMENT_DTYPE), *tables])
        return write_shard(
            self._job.folder,
            number=block.number,
            block=block.fingerprint(),
            tokens=tokens,
            documents=documents_table,
            counts=counts,
        )

    def _encode(self, batch: list[Document], counts: SourceCounts) -> tuple[np.ndarray, np.ndarray]:
        job = self._job
        texts = [document.text for document in batch]
        prompts = [document.prompt for document in batch]
        encode = job.tokenizer.encode_batch
        text_ids = encode(texts, parse_special=job.parse_special)
        prompt_ids = encode(prompts, parse_special=job.parse_special) if any(prompts) else [[] for _ in batch]
        table = np.empty(len(batch), DOCUMENT_DTYPE)
        flat: list[int] = []
        for row, (ids, before, document) in enumerate(zip(text_ids, prompt_ids, batch, strict=True)):
            joined = job.tokenizer.join(ids, prompt_ids=before, add_bos=job.add_bos, add_eos=job.add_eos)
            raw = (document.prompt + document.text).encode()
            counts.text_bytes += len(raw)
            table[row] = (xxhash.xxh3_64_intdigest(raw), len(joined.ids), joined.prompt_length)
            flat += joined.ids
        counts.tokens += len(flat)
        return np.array(flat, dtype=self._dtype), table


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document.text) + len(document.prompt)
        if size >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def gather_blocks(parts: Iterable[Part], *, block_bytes: int) -> Iterator[Block]:
    """Yield parts in order, gathered to about ``block_bytes``; the same parts always give the same blocks."""
    held: list[Part] = []
    size = number = 0
    for part in parts:
        held.append(part)
        size += part.work_bytes
        if size >= block_bytes:
            yield Block(number=number, parts=tuple(held))
            held, size, number = [], 0, number + 1
    if held:
        yield Block(number=number, parts=tuple(held))
