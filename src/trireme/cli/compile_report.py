"""``trireme compile-report RUN.YAML``."""

from __future__ import annotations

import contextlib
import json
import sys

import click

from trireme.cli.imports import whole_imports
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.train import settings_of
from trireme.cli.verb import Verb
from trireme.words import say


@click.command("compile-report", cls=Verb, help=say("compile_report.help"))
@click.argument("run_file", metavar="RUN.YAML", help=say("cli.run_file"))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", help=say("cli.overrides"))
@click.option("--json", "as_json", is_flag=True, help=say("compile_report.option_json"))
def command(run_file: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    from trireme.config import load_config

    loaded = load_config(*settings_of(run_file, overrides))
    with whole_imports():
        from trireme.job.compile_report import findings_json, findings_lines, measure_run
    notices = list(loaded.notices)
    # A module that prints must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        found = measure_run(loaded, notice=notices.append)
    print_notes(notices)
    if as_json:
        print_line(json.dumps(findings_json(found), indent=2, ensure_ascii=False, allow_nan=False))
        return
    for line in findings_lines(found):
        print_line(line)
