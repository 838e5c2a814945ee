"""``trireme plan``: which layout, will it fit, how fast; and how right that has been."""

from __future__ import annotations

import click

from trireme.cli.plan_check import command as check
from trireme.cli.verb import VerbGroup
from trireme.words import say


@click.group("plan", cls=VerbGroup, help=say("cli.verb_plan"))
def command() -> None:
    pass


command.add_command(check)
