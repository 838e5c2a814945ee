"""Section ``data``: what is read, how it becomes tokens, how tokens become samples."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trireme.config.schema import AsTuple, Number, Section, Whole


class SourceSection(Section):
    """One source of documents."""

    path: str = Field(
        description="File, folder or glob (.txt .jsonl .jsonl.gz .jsonl.zst .parquet .tfrecord), `file.jsonl#500` for "
        "its first 500 records, or a corpus that ships: corpus:songci, corpus:python-code, corpus:python-prose."
    )
    weight: Number | None = Field(
        None, gt=0, description="Share in the mixture. Default: by size (each sample equally often)."
    )
    field: str | None = Field(None, description="Field that holds the text. Default: found, and said.")
    prompt_field: str | None = Field(None, description="Field whose text comes first and is read but not learned.")
    map: str | None = Field(
        None,
        description="package.module:function called on each record (a dict); returns a dict, "
        "a text, or None to drop it.",
    )
    encoding: str = Field("utf-8", description="Text encoding of the files, e.g. gb18030.")
    txt_document: Literal["file", "paragraph", "line"] = Field(
        "file", description="What one document is in a .txt file: the file, a block between blank lines, a line."
    )


class DataSection(Section):
    """What is read, how it becomes tokens, how tokens become samples."""

    sources: Annotated[tuple[SourceSection, ...], AsTuple] = Field(
        (), description="Sources of documents; a bare text stands for {path: text}. At least one to train."
    )
    tokenizer: str | None = Field(
        None, description="A tokenizer.json or a folder with one. Default: trained on the sources, kept in the cache."
    )
    tokenizer_vocab_size: Whole = Field(4096, ge=300, description="Vocabulary of a tokenizer trained here.")
    add_bos: bool | None = Field(
        None, description="Begin each document with the begin token. Default: if there is one."
    )
    add_eos: bool | None = Field(None, description="End each document with the end token. Default: if there is one.")
    parse_special: bool = Field(
        False, description="Read special tokens written out in a text as tokens; by default they are plain text."
    )
    seq_len: Whole = Field(512, ge=2, description="Tokens a sequence predicts.")
    packing: Literal["isolate", "none"] = Field(
        "isolate",
        description="isolate: several documents a sequence, blind to each other; none: one document a sequence.",
    )
    long_documents: Literal["split", "truncate", "drop", "stop"] = Field(
        "split", description="A document longer than seq_len: cut into pieces, cut off, left out, or an error."
    )
    on_bad_record: Literal["stop", "skip"] = Field(
        "stop", description="A broken line or a missing field: stop, or skip and count."
    )
    eval_fraction: Number = Field(
        0.02, ge=0, lt=1, description="Share of documents held out for evaluation, by content hash."
    )
    eval_sources: Annotated[tuple[SourceSection, ...], AsTuple] = Field(
        (), description="Held-out sources; replace eval_fraction."
    )
    max_empty_target_ratio: Number = Field(
        0.1, ge=0, le=1, description="Stop before step 1 if more than this share of documents has no token to learn."
    )
    sample_map: str | None = Field(
        None,
        description="package.module:function(sample, rng) called on each packed sample on the fly; rng is seeded by "
        "(seed, epoch, sample), whatever the worker.",
    )
    workers: Whole = Field(
        0, ge=0, description="Processes that prepare batches; 0: one thread, fastest unless sample_map is slow."
    )
    prefetch: Whole = Field(2, ge=1, description="Batches prepared ahead, per worker.")
    build_workers: Whole | None = Field(None, ge=1, description="Processes that tokenise. Default: the cores.")
    cache_dir: str | None = Field(None, description="Tokenised shards. Default: $TRIREME_CACHE, else ~/.cache/trireme.")
