"""Every model of a folder under every layout: the cells of one table, each in ranks of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from trireme.errors import RankFailed, TriremeError
from trireme.verify.run import Memory, Request, verify
from trireme.verify.subject import Source

Verdict = Literal["equal", "different", "refused", "failed"]

_LIMIT_S = 180.0
_ROOMS = ("interpret", "parallel", "plan", "train", "verify")
"""Rooms whose code decides a cell; when it changes, cells are run anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A layout of the table and the ranks it takes."""

    title: str
    layout: str
    ranks: int


COLUMNS: tuple[Column, ...] = (
    Column(title="dp2", layout="dp=2", ranks=2),
    Column(title="zero1", layout="zero1,dp=2", ranks=2),
    Column(title="zero2", layout="zero2,dp=2", ranks=2),
    Column(title="zero3", layout="zero3,dp=2", ranks=2),
    Column(title="hsdp", layout="hsdp=2x2", ranks=4),
    Column(title="tp2", layout="tp=2", ranks=2),
    Column(title="tp2 sp", layout="tp=2,sp", ranks=2),
    Column(title="tp4", layout="tp=4", ranks=4),
    Column(title="pp2", layout="pp=2", ranks=2),
    Column(title="pp2 interleaved", layout="pp=2,schedule=interleaved", ranks=2),
    Column(title="pp4", layout="pp=4", ranks=4),
    Column(title="zero-bubble", layout="pp=2,schedule=zb", ranks=2),
    Column(title="zbv", layout="pp=2,schedule=zbv", ranks=2),
    Column(title="cp2", layout="cp=2", ranks=2),
    Column(title="cp2 ring", layout="cp=2,cp_kind=ring", ranks=2),
    Column(title="ep2", layout="ep=2,dp=2", ranks=2),
    Column(title="tp2 pp2", layout="tp=2,pp=2", ranks=4),
    Column(title="zero3 tp2", layout="zero3,dp=2,tp=2", ranks=4),
    Column(title="dp2 tp2 pp2", layout="dp=2,tp=2,pp=2", ranks=8),
    Column(title="zero3 tp2 pp2 recompute", layout="zero3,dp=2,tp=2,pp=2,recompute=full", ranks=8),
)
"""From one axis to all of them, so that a failure stands left of what it makes fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What came of one model under one layout; ``text`` is the reason where it isn't equal."""

    model: str
    column: str
    verdict: Verdict
    error: float = 0.0
    text: str = ""
    is_single: bool = False
    local_param_ratio: float = 1.0
    code: str = ""


def run_cells(
    models: Sequence[Path],
    columns: Sequence[Column],
    *,
    known: Path,
    reuse: bool = False,
    dtype: str = "fp64",
    tell: Callable[[Cell], None] = lambda cell: None,
) -> list[Cell]:
    """Run what isn't known yet, model by model, and write each cell down as soon as it is there.

    Args:
        models: Files with ``build``.
        columns: Layouts.
        known: JSON lines of cells; read first, so that a run that was cut short goes on.
        reuse: Take cells that other code made as well.
        dtype: Number format of all cells.
        tell: Hears of every cell.
    """
    code, before = code_hash(models), read_cells(known)
    found = {(cell.model, cell.column): cell for cell in before if reuse or cell.code == code}
    cells = []
    for model in models:
        memory = Memory()
        for column in columns:
            cell = found.get((model.stem, column.title))
            if cell is None:
                cell = run_cell(model, column, memory=memory, dtype=dtype, code=code)
                with known.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(cell), ensure_ascii=False) + "\n")
            tell(cell)
            cells.append(cell)
    return cells


def run_cell(model: Path, column: Column, *, memory: Memory, dtype: str = "fp64", code: str = "") -> Cell:
    """Verify one model under one layout, whatever comes of it."""
    request = Request(
        source=Source(model=f"{model}:build", dtype=dtype),
        layout=column.layout,
        ranks=column.ranks,
        timeout_s=_LIMIT_S,
    )
    cell = partial(Cell, model=model.stem, column=column.title, code=code)
    try:
        report = verify(request, memory=memory)
    except TriremeError as error:
        is_fault = isinstance(error, RankFailed) or error.key == "verify.one_device_fails"
        return cell(verdict="failed" if is_fault else "refused", text=str(error))
    return cell(
        verdict="equal" if report.ok else "different",
        error=report.worst_error,
        text="" if report.ok else ", ".join(report.comparison.worst_names(limit=3)),
        is_single=report.is_single_inside,
        local_param_ratio=report.local_param_ratio,
    )


def read_cells(path: Path) -> list[Cell]:
    """Read cells that were written down; of two for one place the later counts."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    cells = [Cell(**json.loads(line)) for line in lines if line.endswith("}")]
    return list({(cell.model, cell.column): cell for cell in cells}.values())


def code_hash(models: Sequence[Path]) -> str:
    """Name the code that decides the cells: the rooms concerned, and the models."""
    digest = hashlib.sha256()
    for path in (*_room_files(), *sorted(models)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _room_files() -> Iterator[Path]:
    package = Path(__file__).parents[1]
    for room in _ROOMS:
        yield from sorted((package / room).glob("*.py"))
