"""Commands as this program shows them: loaded when called, helped in the user's language."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.words import say

if TYPE_CHECKING:
    from click import Context, HelpFormatter, Option

VERBS = (
    "train",
    "launch",
    "generate",
    "chat",
    "data",
    "plan",
    "cluster",
    "checkpoint",
    "config",
    "models",
    "verify",
    "simulate",
    "compile-report",
    "chaos",
    "env",
    "version",
)
"""Top-level commands in the order a newcomer meets them; each is ``trireme.cli.<verb>.command``, with _ for -."""


class Verb(click.Command):
    """One command; its help speaks the user's language."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("options_metavar", say("cli.options_metavar"))
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        ctx.allow_extra_args = True  # so that what is too much is said in the user's language
        try:
            rest = super().parse_args(ctx, args)
        except click.BadOptionUsage as error:
            error.ctx = error.ctx or ctx  # the parser doesn't say whose option it was
            raise
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(say("cli.too_much", given=" ".join(rest), command=ctx.command_path), ctx=ctx)
        return rest

    def format_usage(self, ctx: Context, formatter: HelpFormatter) -> None:
        _write_usage(self, ctx, formatter)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        _write_parameters(self, ctx, formatter)

    def format_arguments(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Arguments stand in front of the options; ``format_options`` has written both."""

    def get_help_option(self, ctx: Context) -> Option | None:
        return _translate_help_option(super().get_help_option(ctx))


class VerbGroup(click.Group):
    """Commands under one name; without one of them it prints its help."""

    command_class = Verb

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("options_metavar", say("cli.options_metavar"))
        kwargs.setdefault("subcommand_metavar", say("cli.command_metavar"))
        super().__init__(*args, **kwargs)

    def format_usage(self, ctx: Context, formatter: HelpFormatter) -> None:
        _write_usage(self, ctx, formatter)

    def format_options(self, ctx: Context, formatter: HelpFormatter) -> None:
        _write_parameters(self, ctx, formatter)
        rows = [(name, self.about(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section(say("cli.commands")):
            formatter.write_dl(rows)

    def format_arguments(self, ctx: Context, formatter: HelpFormatter) -> None:
        """Groups have none."""

    def get_help_option(self, ctx: Context) -> Option | None:
        return _translate_help_option(super().get_help_option(ctx))

    def about(self, ctx: Context, name: str) -> str:
        """Return the one line that says what command ``name`` does."""
        command = self.get_command(ctx, name)
        return (command.help or "").splitlines()[0] if command else ""

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise click.UsageError(self._explain_unknown(ctx, args[0]), ctx=ctx)
        return super().resolve_command(ctx, args)

    def _explain_unknown(self, ctx: Context, name: str) -> str:
        from difflib import get_close_matches

        verbs = self.list_commands(ctx)
        if Path(name).suffix in (".yaml", ".yml"):
            return say("cli.file_for_verb", name=name)
        guess = get_close_matches(name, verbs, n=1, cutoff=0.5)
        if guess:
            return say("cli.unknown_verb_guess", name=name, guess=f"{ctx.command_path} {guess[0]}")
        return say("cli.unknown_verb", name=name, verbs=", ".join(verbs))


class Program(VerbGroup):
    """The whole program: knows its verbs by name and loads a verb's module when it is called."""

    def list_commands(self, ctx: Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"trireme.cli.{cmd_name.replace('-', '_')}").command
        return command

    def about(self, ctx: Context, name: str) -> str:
        """From the catalogue, so that ``--help`` loads no verb."""
        return say(f"cli.verb_{name.replace('-', '_')}")


def _write_usage(command: click.Command, ctx: Context, formatter: HelpFormatter) -> None:
    formatter.write_usage(ctx.command_path, " ".join(command.collect_usage_pieces(ctx)), prefix=say("cli.usage"))


def _write_parameters(command: click.Command, ctx: Context, formatter: HelpFormatter) -> None:
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None:
            names, about = record
            row = names, about.replace("[required]", say("cli.required"))
            (arguments if isinstance(parameter, click.Argument) else options).append(row)
    for title, rows in ((say("cli.arguments"), arguments), (say("cli.options"), options)):
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)


def _translate_help_option(option: Option | None) -> Option | None:
    if option is not None:
        option.help = say("cli.help_option")
    return option
