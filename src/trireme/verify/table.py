"""The table of models and layouts as a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trireme.verify.zoo import Cell, Column

_HEAD = """# Every model under every layout, against one device

Made by `trireme verify --zoo recipes/zoo --table docs/equality.md --dtype fp64`; not written by hand. Cells lie in
equality.jsonl with a hash of the code that made them; the command runs anew what other code made.

Each cell is one run in ranks of its own: a model of [recipes/zoo](../recipes/zoo), unmodified, trained in {dtype} on
two batches of unequal shape with rows of unequal token counts, and compared with one device in loss, every gradient,
their norm and every parameter. The number is the largest of all these errors. With an asterisk the model computes a
part in fp32 whatever its weights are, so errors of that size are rounding. A number in brackets points to the reason
why the layout isn't legal for this model. **Bold** is a fault, a dash a cell that hasn't been run.

{counts}

"""


def table_page(cells: Sequence[Cell], columns: Sequence[Column], *, dtype: str) -> str:
    """Give the page: a table, then the reasons."""
    reasons: dict[str, int] = {}
    by_place = {(cell.model, cell.column): cell for cell in cells}
    rows = [["model", *(column.title for column in columns)]]
    for model in dict.fromkeys(cell.model for cell in cells):
        found = [by_place.get((model, column.title)) for column in columns]
        rows.append([model, *(_show(cell, reasons) for cell in found)])
    parts = [_HEAD.format(dtype=dtype, counts=_counts(cells)), *_markdown(rows), "\n## Layouts\n\n"]
    parts += [f"- {column.title}: `{column.layout}` on {column.ranks} ranks\n" for column in columns]
    if reasons:
        parts.append("\n## Reasons\n\n")
        parts += [f"{number}. {_one_line(text)}\n" for text, number in reasons.items()]
    return "".join(parts)


def _counts(cells: Sequence[Cell]) -> str:
    total = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in ("equal", "refused")}
    faults = len(cells) - sum(total.values())
    return f"{len(cells)} cells: {total['equal']} equal, {total['refused']} not legal, {faults} faults."


def _show(cell: Cell | None, reasons: dict[str, int]) -> str:
    if cell is None:
        return "-"
    number = reasons.setdefault(_general(cell.text), len(reasons) + 1) if cell.text else 0
    match cell.verdict:
        case "equal":
            return f"{cell.error:.0e}{'*' if cell.is_single else ''}"
        case "refused":
            return f"[{number}]"
        case "different":
            return f"**{cell.error:.0e}** [{number}]"
        case "failed":
            return f"**fails** [{number}]"


def _general(text: str) -> str:
    """Drop what differs between runs of the same failure."""
    return re.sub(r"; all tracebacks: \S+|; more: \S+", "", text)


def _markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(rows[0])} |\n"
    yield f"|{'---|' * len(rows[0])}\n"
    for row in rows[1:]:
        yield f"| {' | '.join(row)} |\n"


def _one_line(text: str) -> str:
    return " ".join(text.split())
