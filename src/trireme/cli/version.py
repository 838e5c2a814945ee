"""``trireme version``."""

from __future__ import annotations

import click

from trireme import __version__
from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb
from trireme.words import say


@click.command("version", cls=Verb, help=say("cli.verb_version"))
def command() -> None:
    print_line(f"trireme {__version__}")
