"""Parquet files: row groups as parts, rows as records. pyarrow is imported on first use."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trireme.errors import DataError

_BATCH_ROWS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """One row group of a file."""

    num_rows: int
    disk_bytes: int


def row_groups(path: Path) -> list[RowGroup]:
    """Return the row groups of a file, in order."""
    with _opened(path) as file:
        facts = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        return [RowGroup(num_rows=group.num_rows, disk_bytes=_size(group)) for group in facts]


def read_rows(path: Path, *, row_group: int, columns: tuple[str, ...] | None) -> Iterator[dict[str, Any]]:
    """Yield the rows of one row group; only ``columns``, as far as the file has them."""
    with _opened(path) as file:
        known = set(file.schema_arrow.names)
        wanted = None if columns is None or not known.issuperset(columns) else list(columns)
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=[row_group], columns=wanted):
            yield from _rows_of(batch)


def _rows_of(batch: Any) -> list[dict[str, Any]]:
    """Return rows as Python values; what Python has no value for (a late nanosecond) as Arrow stores it."""
    try:
        rows: list[dict[str, Any]] = batch.to_pylist()
    except ValueError:  # one cell is enough, in whatever column
        columns = [[_cell(scalar) for scalar in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    return rows


def _cell(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()
    except ValueError:
        return getattr(scalar, "value", str(scalar.type))


def _size(group: Any) -> int:
    return sum(group.column(i).total_compressed_size for i in range(group.num_columns))


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataError("data.bad_parquet", path=path, reason=reason) from error
