"""What a rank's writer is told to do, as JSON: nothing in it needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trireme.checkpoint.deal import TensorNote
from trireme.checkpoint.ranges import block_numel
from trireme.checkpoint.record import DimRanges, Manifest, Ranges, ShardRecord, SliceRecord
from trireme.checkpoint.shard import WrittenShard
from trireme.checkpoint.state_json import decode_state, encode_state
from trireme.checkpoint.stored_type import STORED_TYPES


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaPart:
    """A block in the arena, and where it goes."""

    name: str
    entry: str
    dtype: str
    ranges: Ranges
    frozen: bool
    offset_bytes: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its values."""
        return block_numel(self.ranges) * STORED_TYPES[self.dtype].item_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which checkpoints stay: the last ones, those at multiples of ``every``, the best."""

    last: int
    best: bool = True
    every: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadOrder:
    """What the leading rank's writer does when all ranks have written theirs."""

    num_ranks: int
    tensors: tuple[TensorNote, ...]
    manifest: Manifest
    retention: Retention | None = None
    copy_to: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrder:
    """One rank's part of a save.

    Attributes:
        number: Counts a writer's orders; answers carry it.
        rank: Whose part.
        folder: The unfinished folder that all ranks write into.
        save_id: Of the save.
        run_id: Of the run; only its own files are linked.
        parts: What to write.
        max_retries: Further attempts after an error of the storage.
        backoff_s: Wait before the first of them; doubles each time.
        others_s: How long the leading rank's writer waits for the others.
        lead: Set for the leading rank.
    """

    number: int
    rank: int
    folder: Path
    save_id: str
    run_id: str
    parts: tuple[ArenaPart, ...]
    max_retries: int = 3
    backoff_s: float = 0.5
    others_s: float = 900.0
    lead: LeadOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What a rank's writer leaves in the folder for the leading one: its shards, or why there are none."""

    retries: int
    shards: tuple[WrittenShard, ...] = ()
    error: str | None = None


def order_json(order: WriteOrder) -> dict[str, Any]:
    """Return an order as JSON."""
    lead = order.lead
    fields = {**{name: getattr(order, name) for name in _PLAIN}, "folder": str(order.folder)}
    return {
        **fields,
        "parts": [asdict(part) for part in order.parts],
        "lead": None
        if lead is None
        else {
            "num_ranks": lead.num_ranks,
            "tensors": [asdict(note) for note in lead.tensors],
            "manifest": _blank_json(lead.manifest),
            "retention": asdict(lead.retention) if lead.retention else None,
            "copy_to": lead.copy_to,
        },
    }


def read_order(fields: Mapping[str, Any]) -> WriteOrder:
    """Return the order that ``order_json`` wrote."""
    lead = fields["lead"]
    return WriteOrder(
        **{name: fields[name] for name in _PLAIN},
        folder=Path(fields["folder"]),
        parts=tuple(ArenaPart(**{**part, "ranges": _ranges(part["ranges"])}) for part in fields["parts"]),
        lead=None
        if lead is None
        else LeadOrder(
            num_ranks=lead["num_ranks"],
            tensors=tuple(TensorNote(**{**note, "shape": tuple(note["shape"])}) for note in lead["tensors"]),
            manifest=_read_blank(lead["manifest"]),
            retention=Retention(**lead["retention"]) if lead["retention"] else None,
            copy_to=lead["copy_to"],
        ),
    )


def record_json(record: RankRecord) -> dict[str, Any]:
    """Return a rank's record as JSON."""
    return {
        "retries": record.retries,
        "error": record.error,
        "shards": [
            {"record": asdict(shard.record), "slices": [[name, asdict(piece)] for name, piece in shard.slices]}
            for shard in record.shards
        ],
    }


def read_record(fields: Mapping[str, Any]) -> RankRecord:
    """Return the record that ``record_json`` wrote."""
    return RankRecord(
        retries=fields["retries"],
        error=fields["error"],
        shards=tuple(
            WrittenShard(
                record=ShardRecord(**shard["record"]),
                slices=tuple(
                    (name, SliceRecord(**{**piece, "ranges": _ranges(piece["ranges"])}))
                    for name, piece in shard["slices"]
                ),
            )
            for shard in fields["shards"]
        ),
    )


_PLAIN = ("number", "rank", "save_id", "run_id", "max_retries", "backoff_s", "others_s")
_BLANK = ("run_id", "step", "created_at_s", "layout", "finite")


def _blank_json(manifest: Manifest) -> dict[str, Any]:
    return {
        **{name: getattr(manifest, name) for name in _BLANK},
        "versions": dict(manifest.versions),
        "metrics": encode_state(dict(manifest.metrics), "metrics"),
        "state": encode_state(manifest.state),
    }


def _read_blank(fields: Mapping[str, Any]) -> Manifest:
    return Manifest(
        **{name: fields[name] for name in _BLANK},
        save_id="",
        sequence=0,
        save_retries=0,
        versions=fields["versions"],
        metrics=decode_state(fields["metrics"]),
        state=decode_state(fields["state"]),
        shards={},
        tensors={},
    )


def _ranges(dims: Sequence[Sequence[Sequence[int]]]) -> Ranges:
    return tuple(_dim(dim) for dim in dims)


def _dim(dim: Sequence[Sequence[int]]) -> DimRanges:
    return tuple((start, length) for start, length in dim)
