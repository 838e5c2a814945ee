"""What the data turned out to be: every document and token accounted for, before step 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from trireme.data.example import Example
from trireme.data.pack import PackCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """One source, from records to samples.

    ``num_drawn`` and ``epochs`` are for a run of known length. ``share`` is of the samples of the stream.
    """

    name: str
    weight: float | None
    share: float
    num_records: int
    num_documents: int
    num_characters: int
    num_tokens: int
    not_read: dict[str, int]
    first_not_read: dict[str, str]
    num_held_out: int
    packed: PackCounts
    num_drawn: float | None = None
    epochs: float | None = None

    @property
    def characters_per_token(self) -> float:
        """How much text a token holds."""
        return self.num_characters / self.num_tokens if self.num_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutReport:
    """What evaluation is done on; ``num_also_trained`` documents have a copy among the trained ones."""

    num_documents: int
    num_also_trained: int
    packed: PackCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReport:
    """The whole account, before any sample_map. ``num_steps`` and ``global_batch_seqs`` are a run's, if known."""

    seq_len: int
    vocab_size: int
    tokenizer: str
    tokenizer_fingerprint: str
    stream_fingerprint: str
    sources: tuple[SourceReport, ...]
    held_out: HeldOutReport | None
    notices: tuple[str, ...]
    example: Example
    sample_map: str | None = None
    num_steps: int | None = None
    global_batch_seqs: int | None = None

    @property
    def packed(self) -> PackCounts:
        """Counts summed over sources."""
        return sum_counts([source.packed for source in self.sources])

    @property
    def efficiency_ratio(self) -> float:
        """Share of positions that are not padding."""
        return self.packed.num_real_tokens / (self.packed.num_rows * self.seq_len)

    @property
    def target_ratio(self) -> float:
        """Share of those positions at which something is learned."""
        return self.packed.num_target_tokens / self.packed.num_real_tokens

    @property
    def characters_per_token(self) -> float:
        """How much text a token holds, over all sources."""
        tokens = sum(source.num_tokens for source in self.sources)
        return sum(source.num_characters for source in self.sources) / tokens if tokens else 0.0

    def for_run(self, drawn: Sequence[float], *, num_steps: int, global_batch_seqs: int) -> DataReport:
        """Return the report of a run that takes ``drawn`` samples of each source."""
        sources = tuple(
            replace(source, num_drawn=count, epochs=count / source.packed.num_rows if source.packed.num_rows else 0.0)
            for source, count in zip(self.sources, drawn, strict=True)
        )
        return replace(self, sources=sources, num_steps=num_steps, global_batch_seqs=global_batch_seqs)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, derived ones included."""
        derived = ("efficiency_ratio", "target_ratio", "characters_per_token")
        values = asdict(self) | {name: getattr(self, name) for name in derived}
        for written, source in zip(values["sources"], self.sources, strict=True):
            written["characters_per_token"] = source.characters_per_token
        return values


def sum_counts(parts: Sequence[PackCounts]) -> PackCounts:
    """Return the sum, field by field."""
    names = [field.name for field in fields(PackCounts)]
    return PackCounts(**{name: sum(getattr(part, name) for part in parts) for name in names})
