"""``trireme verify``: a layout against one device."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click

from trireme.cli.imports import whole_imports
from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb
from trireme.words import say


@click.command("verify", cls=Verb, help=say("verify.help"))
@click.option("--model", metavar="MODEL", help=say("verify.option_model"))
@click.option("--layout", metavar="TEXT", default="", help=say("verify.option_layout"))
@click.option("--ranks", type=click.IntRange(min=1), default=1, show_default=True, help=say("verify.option_ranks"))
@click.option(
    "--dtype", type=click.Choice(["fp32", "fp64"]), default="fp32", show_default=True, help=say("verify.option_dtype")
)
@click.option("--steps", type=click.IntRange(min=1), default=2, show_default=True, help=say("verify.option_steps"))
@click.option("--shrink", is_flag=True, help=say("verify.option_shrink"))
@click.option("--inject", metavar="FAULT", help=say("verify.option_inject"))
@click.option("--json", "as_json", is_flag=True, help=say("verify.option_json"))
@click.option("--seqs", type=click.IntRange(min=1), help=say("verify.option_seqs"))
@click.option("--seq-len", type=click.IntRange(min=2), help=say("verify.option_seq_len"))
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help=say("verify.option_seed"))
@click.option(
    "--timeout", type=click.IntRange(min=1), default=300, show_default=True, help=say("verify.option_timeout")
)
@click.option("--zoo", metavar="FOLDER", help=say("verify.option_zoo"))
@click.option("--table", metavar="FILE", help=say("verify.option_table"))
@click.option("--reuse", is_flag=True, help=say("verify.option_reuse"))
def command(**options: Any) -> int:
    if options["zoo"]:
        return _run_zoo(Path(options["zoo"]), table=options["table"], dtype=options["dtype"], reuse=options["reuse"])
    if not options["model"]:
        raise click.UsageError(say("verify.needs_model"))
    with whole_imports():
        from trireme.verify import Request, Source, verify

    source = Source(model=options["model"], dtype=options["dtype"], seed=options["seed"], shrink=options["shrink"])
    request = Request(
        source=source,
        layout=options["layout"],
        ranks=options["ranks"],
        num_steps=options["steps"],
        seqs=options["seqs"] or 0,
        seq_len=options["seq_len"] or 0,
        fault=options["inject"],
        timeout_s=float(options["timeout"]),
    )
    # A module that prints must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        report = verify(request)
    _print(report, as_json=options["as_json"])
    return 0 if report.ok else 1


def _print(report: Any, *, as_json: bool) -> None:
    if as_json:
        import json

        print_line(json.dumps(report.to_json(), indent=2, ensure_ascii=False, allow_nan=False))
        return
    for line in report.lines():
        print_line(line)


def _run_zoo(folder: Path, *, table: str | None, dtype: str, reuse: bool) -> int:
    """Run every model of a folder under every layout; the page is written anew after each."""
    models = sorted(folder.glob("*.py"))
    if not models:
        raise click.UsageError(say("verify.empty_zoo", path=folder))
    with whole_imports():
        from trireme.verify import COLUMNS, run_cells, table_page

    page = Path(table or folder / "equality.md")
    with contextlib.redirect_stdout(sys.stderr):
        cells = run_cells(
            models, COLUMNS, known=page.with_suffix(".jsonl"), reuse=reuse, dtype=dtype, tell=lambda cell: _tell(cell)
        )
    page.write_text(table_page(cells, COLUMNS, dtype=dtype), encoding="utf-8")
    return 1 if any(cell.verdict in ("different", "failed") for cell in cells) else 0


def _tell(cell: Any) -> None:
    click.echo(
        say(
            "verify.cell", model=cell.model, column=cell.column, verdict=cell.verdict, error=cell.error, text=cell.text
        ),
        err=True,
    )
