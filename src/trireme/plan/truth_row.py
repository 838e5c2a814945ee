"""A published run as a table of runs gives it: cells read into numbers, what is empty left empty."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trireme.errors import ConfigError

REQUIRED = ("id", "layers", "hidden", "heads", "seq_len", "gpu", "gpu_count", "tp", "pp", "dp", "gbs")
"""Columns without which a table is none of runs; cells may be empty, columns may not be missing."""


class Unreadable(Exception):
    """Why a row can't be predicted; its text is the ``skipped`` of the row."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line by its columns."""

    cells: Mapping[str, str]
    line: int

    @property
    def id(self) -> str:
        """What the row is called; its line where it has no id."""
        return self.text("id") or f"line {self.line}"

    def text(self, column: str) -> str:
        """A cell without spaces around it; empty where the table lacks the column."""
        return self.cells.get(column, "").strip()

    def number(self, column: str) -> float | None:
        """A cell as a number, None where it is empty.

        Raises:
            Unreadable: It holds something else.
        """
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0:
            raise Unreadable(f"{column} is {text!r}, which is no number")
        return value

    def count(self, column: str) -> int | None:
        """A cell as a whole number of at least 1, None where it is empty.

        Raises:
            Unreadable: It holds something else.
        """
        value = self.number(column)
        if value is None:
            return None
        if value < 1 or value != int(value):
            raise Unreadable(f"{column} is {self.text(column)!r}, which is no whole number of at least 1")
        return int(value)

    def needed(self, column: str) -> int:
        """A whole number that the row must have.

        Raises:
            Unreadable: The cell is empty or no such number.
        """
        value = self.count(column)
        if value is None:
            raise Unreadable(f"{column} is not given")
        return value


def read_rows(text: str, *, path: str) -> list[Row]:
    """Read a table of runs.

    Raises:
        ConfigError: It is empty, lacks columns, or a line has more or fewer cells than the header.
    """
    lines = csv.reader(io.StringIO(text.lstrip("\ufeff")), strict=True)
    try:
        table = [(lines.line_num, cells) for cells in lines if cells]
    except csv.Error as error:
        raise ConfigError("truth.no_csv", path=path, line=lines.line_num, reason=str(error)) from None
    if not table:
        raise ConfigError("truth.empty", path=path)
    header = [name.strip() for name in table[0][1]]
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise ConfigError("truth.no_columns", path=path, missing=", ".join(missing))
    for number, cells in table[1:]:
        if len(cells) != len(header):
            raise ConfigError("truth.ragged", path=path, line=number, cells=len(cells), columns=len(header))
    if len(table) == 1:
        raise ConfigError("truth.empty", path=path)
    return [Row(dict(zip(header, cells, strict=True)), number) for number, cells in table[1:]]


_UNITS = {"gb": 1e9, "gib": 2.0**30, "mb": 1e6, "mib": 2.0**20}


def measured_bytes(row: Row) -> float | None:
    """Give the peak of memory that a row prints; tools print GiB and say GB, so GB is read as GiB.

    Only "GB (1e9)" is taken at its word, and MB as MiB.
    """
    text = row.text("peak_mem")
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        return None
    unit = row.text("mem_unit").lower()
    if "1e9" in unit:
        return float(text) * 1e9
    return float(text) * (2.0**20 if unit.startswith("m") else 2.0**30)
