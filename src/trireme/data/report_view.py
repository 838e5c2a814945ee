"""The data report as a person reads it: a table of sources, what was left out and why, one sample."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unicodedata import category

from trireme.data.example import Example, ExampleSpan
from trireme.data.report import DataReport, SourceReport
from trireme.units import format_count
from trireme.words import say

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_LEARNED_STYLE, _READ_STYLE, _BORDER_STYLE = "green", "yellow", "cyan"
_MAX_PIECES, _MAX_CHARACTERS = 4, 240
_COLUMNS = ("source", "documents", "tokens", "characters_per_token", "left_out", "held_out", "samples", "share")
_RUN_COLUMNS = ("drawn", "epochs")


def format_report(report: DataReport, *, color: bool = False, width: int = 100) -> str:
    """Return the report as text; ``color`` adds terminal colours, without it marks stand for them."""
    parts: list[Any] = [_source_table(report), *summary_lines(report)]
    parts.append(_example_text(report.example, whole=False, color=color))
    return _render(parts, color=color, width=width)


def format_example(example: Example, *, color: bool = False, width: int = 100) -> str:
    """Return one sample whole, followed by a row a token: place, id, text, learned or not."""
    return _render([_example_text(example, whole=True, color=color), _token_table(example)], color=color, width=width)


def summary_lines(report: DataReport) -> list[str]:
    """Return everything the table has no room for, a sentence each."""
    lines = [_packing_line(report), _tokenizer_line(report), *_held_out_lines(report)]
    if report.sample_map:
        lines.append(say("report.before_map", function=report.sample_map))
    lines += [line for source in report.sources for line in _losses_of(source)]
    return lines


def _render(parts: list[Any], *, color: bool, width: int) -> str:
    from io import StringIO

    from rich.console import Console

    sink = StringIO()
    console = Console(
        file=sink,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    lines = sink.getvalue().splitlines()
    return "\n".join(line if color else line.rstrip() for line in lines)


def _source_table(report: DataReport) -> Table:
    from rich import box
    from rich.table import Table

    with_run = report.num_steps is not None
    names = _COLUMNS + (_RUN_COLUMNS if with_run else ())
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in names:
        table.add_column(say(f"report.column_{name}"), justify="left" if name == "source" else "right")
    for source in report.sources:
        table.add_row(*(_cell(source, name) for name in names))
    return table


def _cell(source: SourceReport, name: str) -> str:
    cells = {
        "source": source.name,
        "documents": f"{source.num_documents:,}",
        "tokens": format_count(source.num_tokens),
        "characters_per_token": f"{source.characters_per_token:.2f}",
        "left_out": f"{_num_left_out(source):,}",
        "held_out": f"{source.num_held_out:,}",
        "samples": f"{source.packed.num_rows:,}",
        "share": f"{source.share:.1%}",
        "drawn": f"{source.num_drawn or 0:,.0f}",
        "epochs": f"{source.epochs or 0:.2f}",
    }
    return cells[name]


def _num_left_out(source: SourceReport) -> int:
    return sum(source.not_read.values()) + source.packed.without_target + source.packed.dropped


def _packing_line(report: DataReport) -> str:
    return say(
        "report.packing",
        samples=f"{report.packed.num_rows:,}",
        seq_len=report.seq_len,
        filled=f"{report.efficiency_ratio:.1%}",
        learned=f"{report.target_ratio:.1%}",
    )


def _tokenizer_line(report: DataReport) -> str:
    return say(
        "report.tokenizer",
        origin=report.tokenizer,
        vocab_size=report.vocab_size,
        characters=f"{report.characters_per_token:.2f}",
    )


def _held_out_lines(report: DataReport) -> Iterator[str]:
    held_out = report.held_out
    if held_out is None:
        yield say("report.nothing_held_out")
        return
    yield say(
        "report.held_out",
        documents=f"{held_out.num_documents:,}",
        samples=f"{held_out.packed.num_rows:,}",
        tokens=format_count(held_out.packed.num_target_tokens),
    )
    if held_out.num_also_trained:
        count = f"{held_out.num_also_trained:,}"
        yield say("report.also_trained", count=count, documents=f"{held_out.num_documents:,}")


def _losses_of(source: SourceReport) -> Iterator[str]:
    for reason, count in source.not_read.items():
        key = reason if reason.startswith("drop_") else f"drop_{reason}"
        first = source.first_not_read.get(reason, "-")
        yield say("report.not_read", source=source.name, count=f"{count:,}", reason=say(f"data.{key}"), first=first)
    packed = source.packed
    losses = (
        ("nothing_to_learn", packed.nothing_to_learn, packed.nothing_to_learn_tokens),
        ("split", packed.split, 0),
        ("truncated", packed.truncated, packed.truncated_tokens),
        ("dropped", packed.dropped, packed.dropped_tokens),
        ("prompt_pieces", packed.prompt_pieces, packed.prompt_pieces_tokens),
    )
    for name, count, tokens in losses:
        if count:
            yield say(f"report.{name}", source=source.name, count=f"{count:,}", tokens=f"{tokens:,}")


def _example_text(example: Example, *, whole: bool, color: bool) -> Text:
    """Return the texts of a sample; colours tell what is learned, or marks where there are none."""
    from rich.text import Text

    title = "report.example_color" if color else "report.example"
    text = Text(say(title, sample=example.sample_id, source=example.source) + "\n")
    shown = example.pieces if whole else example.pieces[:_MAX_PIECES]
    for piece in shown:
        heading = say("report.piece", number=piece.number, tokens=len(piece.tokens))
        text.append(heading + "\n", style=_BORDER_STYLE)
        for span in _cut(piece.spans, room=sys.maxsize if whole else _MAX_CHARACTERS):
            body = show_controls(span.text)
            marked = body if color or not span.learned else f"⟦{body}⟧"
            text.append(marked, style=_LEARNED_STYLE if span.learned else _READ_STYLE)
        text.append("\n")
    if len(shown) < len(example.pieces):
        text.append(say("report.more_pieces", count=len(example.pieces) - len(shown)) + "\n", style=_BORDER_STYLE)
    if example.num_padding:
        text.append(say("report.padding", count=example.num_padding), style=_BORDER_STYLE)
    text.rstrip()
    return text


def _cut(spans: Iterable[ExampleSpan], *, room: int) -> Iterator[ExampleSpan]:
    """Yield spans until ``room`` characters are used; the one that is cut says so."""
    for span in spans:
        if len(span.text) > room:
            yield replace(span, text=span.text[:room] + "…")
            return
        yield span
        room -= len(span.text)


def show_controls(text: str) -> str:
    """Return ``text`` with control characters spelled out: a document must not steer the terminal."""
    return "".join(c if c in "\n\t" or category(c) != "Cc" else f"\\x{ord(c):02x}" for c in text)


def _on_one_line(text: str) -> str:
    return show_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def _token_table(example: Example) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("document", "position", "token", "text", "learned"):
        table.add_column(say(f"report.column_{name}"), justify="left" if name == "text" else "right")
    for piece in example.pieces:
        for token in piece.tokens:
            style = _LEARNED_STYLE if token.learned else _READ_STYLE
            mark = say("report.yes") if token.learned else say("report.no")
            cells = (str(piece.number), str(token.position), str(token.token_id), _on_one_line(token.text), mark)
            table.add_row(*cells, style=style)
    return table
