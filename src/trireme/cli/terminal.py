"""Lines to a person: results on standard output, everything about them on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from trireme.words import say


def print_line(text: str) -> None:
    """Print a result on standard output."""
    click.echo(text)


def print_notes(notes: Iterable[str]) -> None:
    """Print what is worth knowing on standard error, a line each."""
    for note in notes:
        click.echo(say("cli.note", message=note), err=True)


def print_error(message: str) -> None:
    """Print what went wrong on standard error; a message of several lines holds several problems."""
    for line in message.splitlines():
        click.echo(say("cli.error", message=line), err=True)


def tolerate_narrow_encodings() -> None:
    """Let a terminal that can't show a character show its code, rather than end the program.

    That is so for UTF-8 as well: a name of a file may hold bytes that are no text.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
