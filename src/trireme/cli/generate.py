"""``trireme generate``: continue a prompt, shown as it is written."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import click

from trireme.cli.sampling import build_sampling, load_for, sampling_options
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb
from trireme.words import say


@click.command("generate", cls=Verb, help=say("cli.verb_generate"))
@click.argument("path", metavar="PATH", help=say("generate.path"))
@click.option("--prompt", "-p", help=say("generate.prompt"))
@click.option(
    "--num-samples", "-n", type=click.IntRange(min=1), default=1, show_default=True, help=say("generate.num_samples")
)
@sampling_options
def command(**options: Any) -> None:
    from trireme.job.writing import Continuation, prompt_ids

    loaded = load_for(options)
    sampling = build_sampling(options)
    prompt = _prompt(options["prompt"])
    ids = prompt_ids(loaded, prompt)
    for index in range(options["num_samples"]):
        if options["num_samples"] > 1:
            print_line(f"--- {index + 1}/{options['num_samples']}")
        continuation = Continuation(loaded, ids, sampling=replace(sampling, seed=sampling.seed + index))
        write_text(prompt)
        for piece in continuation:
            write_text(piece)
        print_line("")
        if continuation.end == "context":
            print_notes([say("generate.context_full", max_seq_len=loaded.max_seq_len)])


def write_text(text: str) -> None:
    """Write text as it is; on a terminal control characters are spelled out, for a model may write any."""
    if sys.stdout.isatty():
        from trireme.observe import visible

        text = "\n".join(visible(line) for line in text.split("\n"))
    click.echo(text, nl=False)


def _prompt(given: str | None) -> str:
    if given is not None or sys.stdin.isatty():
        return given or ""
    return sys.stdin.read().removesuffix("\n")
