"""``trireme verify``: a layout against one device."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from trireme.cli.imports import whole_imports
from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb
from trireme.words import say


@click.command("verify", cls=Verb, help=say("verify.help"))
@click.option("--model", metavar="MODEL", required=True, help=say("verify.option_model"))
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
def command(**options: Any) -> int:
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
