"""``trireme config show | check | schema``."""

from __future__ import annotations

import json

import click

from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb, VerbGroup
from trireme.words import say


@click.group("config", cls=VerbGroup, help=say("cli.verb_config"))
def command() -> None:
    """Hold the three commands below."""


_run_file = click.argument("run_file", metavar="RUN.YAML", help=say("cli.run_file"))
_overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", help=say("cli.overrides"))


@command.command("show", cls=Verb, help=say("cli.config_show"))
@_run_file
@_overrides
@click.option("--plain", is_flag=True, help=say("cli.config_plain"))
def show(run_file: str, overrides: tuple[str, ...], *, plain: bool) -> None:
    from trireme.config import load_config

    loaded = load_config(run_file, overrides, purpose="show")
    print_notes(loaded.notices)
    print_line(loaded.to_yaml(with_origins=not plain).rstrip("\n"))


@command.command("check", cls=Verb, help=say("cli.config_check"))
@_run_file
@_overrides
def check(run_file: str, overrides: tuple[str, ...]) -> None:
    from trireme.config import load_config

    print_notes(load_config(run_file, overrides).notices)
    print_line(say("cli.config_fine", path=run_file))


@command.command("schema", cls=Verb, help=say("cli.config_schema"))
def schema() -> None:
    from trireme.config import build_json_schema

    print_line(json.dumps(build_json_schema(), indent=2, ensure_ascii=False))
