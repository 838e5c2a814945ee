"""The whole way from settings to samples: tokenizer, stores, split, rows, streams, report, and what must hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from trireme.config import DataSection, SourceSection
from trireme.data.assemble import SourcePart, build_stream, plan_part
from trireme.data.build import build_store
from trireme.data.cache import cache_folder
from trireme.data.example import build_example
from trireme.data.gather import FIELDS
from trireme.data.pack import PackRules, has_target
from trireme.data.progress import Progress
from trireme.data.report import DataReport, HeldOutReport, SourceReport, sum_counts
from trireme.data.sample_map import SampleMap
from trireme.data.split import split_documents
from trireme.data.store import TokenStore
from trireme.data.stream import SampleStream
from trireme.data.tokenizer import Tokenizer
from trireme.data.tokenizer_load import resolve_tokenizer
from trireme.errors import DataError
from trireme.units import format_bytes
from trireme.words import say

_EVAL_SEED = 0
"""Rows and order of evaluation do not follow the run's seed, so runs of several seeds are compared on one set."""
_SHOWN_CHARACTERS = 200
_COPIES_OF_A_SAMPLE = 8
"""Of one sample, at the least, that are in memory at once: in the batch, the next ones, and as 64-bit numbers."""

Notice = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Everything a run reads, and the account of it."""

    tokenizer: Tokenizer
    train: SampleStream
    evaluation: SampleStream | None
    report: DataReport

    def report_for_run(self, *, num_steps: int, global_batch_seqs: int) -> DataReport:
        """Return the report with how often each source will have been seen."""
        drawn = self.train.drawn_per_source(num_steps, global_batch_seqs=global_batch_seqs)
        return self.report.for_run(drawn, num_steps=num_steps, global_batch_seqs=global_batch_seqs)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Sources that have been tokenised; ``evaluated`` is empty where evaluation is split off."""

    tokenizer: Tokenizer
    trained: tuple[TokenStore, ...]
    evaluated: tuple[TokenStore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """Which documents are for what, and their rows."""

    train: list[SourcePart]
    evaluation: list[SourcePart]


class _Notes:
    """Passes notices on and keeps them for the report."""

    def __init__(self, notice: Notice) -> None:
        self._notice = notice
        self.texts: list[str] = []

    def keep(self, text: str) -> None:
        """Pass a finished sentence on and keep it."""
        self.texts.append(text)
        self._notice(text)


def _ignore(_: str) -> None:
    """Notices stand in the report as well."""


def prepare_data(
    data: DataSection, *, seed: int, progress: Progress | None = None, notice: Notice = _ignore
) -> PreparedData:
    """Return tokenizer, training stream, evaluation stream and report for ``data``.

    Everything that would make a run pointless is found here, before anything else starts.

    Raises:
        DataError: A source can't be read or is empty, nothing would be learned, or too many documents have
            nothing to learn.
    """
    _check_room(data.seq_len)
    notes = _Notes(notice)
    read = _read_sources(data, progress=progress, notice=notes.keep)
    tokenizer = read.tokenizer
    sample_map = None
    if data.sample_map is not None:
        sample_map = SampleMap(data.sample_map, seed=seed, vocab_size=tokenizer.vocab_size)
    planned = _plan(read, data=data, seed=seed, notes=notes)
    _check_targets(planned.train, data=data, tokenizer=tokenizer)
    train = build_stream(planned.train, seed=seed, tokenizer=tokenizer, sample_map=sample_map)
    _note_oddities(train, planned, notes)
    evaluation = None
    if any(part.plan.num_rows for part in planned.evaluation):
        evaluation = build_stream(planned.evaluation, seed=_EVAL_SEED, tokenizer=tokenizer)
    report = _report(train, planned, data=data, tokenizer=tokenizer, notes=notes)
    return PreparedData(tokenizer=tokenizer, train=train, evaluation=evaluation, report=report)


def _check_room(seq_len: int) -> None:
    """Refuse samples that the machine has no room for: a system short of memory ends the process without a word."""
    pages = os.sysconf("SC_PHYS_PAGES") if "SC_PHYS_PAGES" in os.sysconf_names else -1
    total_bytes = pages * os.sysconf("SC_PAGE_SIZE")
    needed_bytes = seq_len * len(FIELDS) * np.dtype(np.int32).itemsize
    if pages > 0 and needed_bytes > total_bytes // _COPIES_OF_A_SAMPLE:
        sizes = {"needed": format_bytes(needed_bytes), "total": format_bytes(total_bytes)}
        raise DataError("sample.no_room_for_sample", seq_len=seq_len, **sizes)


def _read_sources(data: DataSection, *, progress: Progress | None, notice: Notice) -> _Read:
    if not data.sources:
        raise DataError("sample.no_sources")
    cache_dir = cache_folder(data.cache_dir)
    tokenizer = resolve_tokenizer(data, cache_dir=cache_dir, progress=progress, notice=notice)

    build = partial(build_store, data=data, tokenizer=tokenizer, cache_dir=cache_dir, progress=progress, notice=notice)

    def stores(sections: Sequence[SourceSection]) -> tuple[TokenStore, ...]:
        return tuple(_with_documents(build(section), section) for section in sections)

    return _Read(tokenizer=tokenizer, trained=stores(data.sources), evaluated=stores(data.eval_sources))


def _with_documents(store: TokenStore, section: SourceSection) -> TokenStore:
    if store.num_documents == 0:
        reasons = ", ".join(f"{count} {reason}" for reason, count in store.counts.dropped.items())
        raise DataError(
            "sample.no_documents", source=section.path, records=store.counts.records, reasons=reasons or "-"
        )
    return store


def _plan(read: _Read, *, data: DataSection, seed: int, notes: _Notes) -> _Planned:
    held_out = _split(read, data=data, notes=notes)
    rules = PackRules(seq_len=data.seq_len, packing=data.packing, long_documents=data.long_documents, seed=seed)
    named = list(zip(data.sources, read.trained, held_out, strict=True))
    train = [
        plan_part(store, name=section.path, weight=section.weight, chosen=~mask, rules=rules)
        for section, store, mask in named
    ]
    if data.eval_sources:
        named = [
            (section, store, np.ones(store.num_documents, dtype=bool))
            for section, store in zip(data.eval_sources, read.evaluated, strict=True)
        ]
    eval_rules = replace(rules, seed=_EVAL_SEED)
    evaluation = [
        plan_part(store, name=section.path, weight=None, chosen=mask, rules=eval_rules)
        for section, store, mask in named
    ]
    return _Planned(train=train, evaluation=evaluation)


def _split(read: _Read, *, data: DataSection, notes: _Notes) -> tuple[np.ndarray, ...]:
    """Return which documents of the training sources are held out. Shapes: [num_documents] bool a source."""
    fraction = 0.0 if data.eval_sources else data.eval_fraction
    learnable = [has_target(store.lengths, prompt_lengths=store.prompt_lengths) for store in read.trained]
    split = split_documents([store.hashes for store in read.trained], learnable=learnable, fraction=fraction)
    if fraction > 0 and split.num_held_out == 0:
        notes.keep(say("sample.nothing_to_hold_out", fraction=fraction))
    return split.held_out


def _check_targets(parts: Sequence[SourcePart], *, data: DataSection, tokenizer: Tokenizer) -> None:
    """Raise if more documents than allowed have nothing to learn, showing one of them."""
    counts = sum_counts([part.plan.counts for part in parts])
    packed = counts.num_documents - counts.dropped
    if packed == 0 or counts.without_target <= data.max_empty_target_ratio * packed:
        return
    part, number = _first_without_target(parts)
    text = tokenizer.decode(part.store.document(number).tolist(), skip_special=False)
    shown = " ".join(text[:_SHOWN_CHARACTERS].split())
    raise DataError(
        "sample.empty_targets",
        count=counts.without_target,
        documents=packed,
        limit=data.max_empty_target_ratio,
        source=part.name,
        number=number + 1,
        prompt_tokens=int(part.store.prompt_lengths[number]),
        tokens=int(part.store.lengths[number]),
        text=shown,
    )


def _first_without_target(parts: Sequence[SourcePart]) -> tuple[SourcePart, int]:
    """Return the first document of which nothing is learned."""
    for part in parts:
        missing = np.setdiff1d(part.documents, part.plan.documents)
        fits = part.store.lengths[missing] - 1 <= part.plan.rules.seq_len
        kept = missing[fits | (part.plan.rules.long_documents != "drop")]
        if len(kept):
            return part, int(kept[0])
    raise AssertionError("counted, so it is there")


def _note_oddities(stream: SampleStream, planned: _Planned, notes: _Notes) -> None:
    """Say what is legal and probably not meant."""
    mixture = stream.order.mixture
    if mixture.rounded:
        shares = ", ".join(f"{pool.turns}/{mixture.period}" for pool in mixture.pools)
        notes.keep(say("sample.weights_rounded", period=mixture.period, shares=shares))
    for part in planned.train:
        if part.plan.num_rows == 0:
            notes.keep(say("sample.source_without_samples", source=part.name, documents=part.store.num_documents))
    held_out = sum(len(part.documents) for part in planned.evaluation)
    if held_out and not any(part.plan.num_rows for part in planned.evaluation):
        notes.keep(say("sample.nothing_to_evaluate", documents=held_out))


def _report(
    train: SampleStream, planned: _Planned, *, data: DataSection, tokenizer: Tokenizer, notes: _Notes
) -> DataReport:
    return DataReport(
        seq_len=train.seq_len,
        vocab_size=tokenizer.vocab_size,
        tokenizer=tokenizer.origin if data.tokenizer else say("report.trained_here"),
        tokenizer_fingerprint=tokenizer.fingerprint,
        stream_fingerprint=train.fingerprint,
        sources=tuple(_report_source(part, stream=train) for part in planned.train),
        held_out=_report_held_out(planned),
        sample_map=train.sample_map.name if train.sample_map else None,
        notices=tuple(notes.texts),
        example=build_example(train, int(train.ids_at(0, global_batch_seqs=1)[0]), tokenizer=tokenizer),
    )


def _report_source(part: SourcePart, *, stream: SampleStream) -> SourceReport:
    counts = part.store.counts
    total_weight = sum(source.weight or 0.0 for source in stream.sources)
    by_size = part.plan.num_rows / stream.num_samples
    return SourceReport(
        name=part.name,
        weight=part.weight,
        share=part.weight / total_weight if part.weight is not None else by_size,
        num_records=counts.records,
        num_documents=part.store.num_documents,
        num_characters=counts.characters,
        num_tokens=part.store.num_tokens,
        not_read=dict(counts.dropped),
        first_not_read=dict(counts.first_dropped),
        num_held_out=part.store.num_documents - len(part.documents),
        packed=part.plan.counts,
    )


def _report_held_out(planned: _Planned) -> HeldOutReport | None:
    parts = planned.evaluation
    packed = sum_counts([part.plan.counts for part in parts])
    if packed.num_rows == 0:
        return None
    trained = np.concatenate([part.store.hashes[part.documents] for part in planned.train])
    held_out = np.concatenate([part.store.hashes[part.documents] for part in parts])
    return HeldOutReport(
        num_documents=len(held_out), num_also_trained=int(np.isin(held_out, trained).sum()), packed=packed
    )
