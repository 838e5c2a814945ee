"""``trireme chat``: several turns with a model, line by line; from a pipe as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.generate import write_text
from trireme.cli.sampling import build_sampling, load_for, sampling_options
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb
from trireme.words import say

if TYPE_CHECKING:
    from trireme.job.talk import Talk


@click.command("chat", cls=Verb, help=say("cli.verb_chat"))
@click.argument("path", metavar="PATH", help=say("generate.path"))
@click.option("--system", help=say("generate.system"))
@sampling_options
def command(**options: Any) -> None:
    from trireme.job.talk import Talk, check_system

    loaded = load_for(options)
    check_system(loaded, options["system"])
    if loaded.chat_template is None:
        print_notes([say("generate.chat_base")])
    print_notes([say("generate.chat_help")])
    sampling = build_sampling(options)
    talk = Talk(loaded, sampling=sampling, system=options["system"], notice=lambda text: print_notes([text]))
    for line in _lines():
        if line.startswith("/"):
            if line.split()[0] == "/exit":
                return
            _obey(line.split()[0], talk)
        elif line.strip():
            _answer(talk, line)


def _lines() -> Iterator[str]:
    """What the user types, or the lines of a pipe, until the end of either."""
    while True:
        try:
            yield _read_line()
        except EOFError:
            if sys.stdin.isatty():
                print_line("")
            return


def _read_line() -> str:
    if sys.stdin.isatty():
        import readline  # noqa: F401  (gives input() its line editing and history)

        return input("> ")
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")


def _obey(name: str, talk: Talk) -> None:
    match name:
        case "/reset":
            talk.reset()
            print_notes([say("generate.chat_reset")])
        case "/help":
            print_notes([say("generate.chat_help")])
        case _:
            print_notes([say("generate.chat_unknown", name=name)])


def _answer(talk: Talk, line: str) -> None:
    """Write the reply; Ctrl-C ends it, not the talk."""
    reply = talk.reply(line)
    try:
        for piece in reply:
            write_text(piece)
    except KeyboardInterrupt:
        reply.close()
    print_line("")
