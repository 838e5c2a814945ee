"""What a manifest is made of. Version 1 allows any number of shards and slices:

Version 2 adds shards that an earlier save of the run wrote: the very file, linked into this folder.

tensor = global shape + dtype + slices          (or: the same as another tensor)
slice  = shard file + byte range + hash + ranges, for every dimension of the global tensor a list
         of (offset, length); the slice is their product, row-major. A tensor-parallel shard of a
         fused matrix has several ranges in one dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DimRanges = tuple[tuple[int, int], ...]
"""The (offset, length) stretches of one dimension."""

Ranges = tuple[DimRanges, ...]
"""For every dimension of the global tensor, the (offset, length) ranges that a slice covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord:
    """A block of a tensor in one shard file."""

    file: str
    entry: str
    offset_bytes: int
    size_bytes: int
    ranges: Ranges
    xxh3: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the block."""
        return tuple(sum(length for _, length in dim) for dim in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRecord:
    """A tensor: its slices, or the name of the tensor that it shares memory with."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    slices: tuple[SliceRecord, ...]
    same_as: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRecord:
    """A shard file: its length, and the hash of its header; with the save that wrote it, if that was an earlier one."""

    file: str
    size_bytes: int
    header_bytes: int
    header_xxh3: str
    save_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that a checkpoint says about itself.

    Attributes:
        save_id: Unique to the save; every shard carries it too.
        run_id: The run that saved it; runs never prune each other's.
        step: Optimizer steps done.
        sequence: Counts the saves into one root; orders them even if steps or clocks go back.
        created_at_s: Unix time.
        layout: Of the run that saved it, as text.
        finite: False if the saver found NaN or Inf in it: kept for study, never resumed from.
        save_retries: Failed attempts before this one.
        versions: Of trireme, torch and python.
        metrics: Numbers about this step, ``eval_loss`` among them.
        state: Everything that is no tensor.
        shards: The files, by name.
        tensors: By name, in the order they were given.
    """

    save_id: str
    run_id: str
    step: int
    sequence: int
    created_at_s: float
    layout: str
    finite: bool
    save_retries: int
    versions: Mapping[str, str]
    metrics: Mapping[str, float]
    state: Mapping[str, Any]
    shards: Mapping[str, ShardRecord]
    tensors: Mapping[str, TensorRecord]
