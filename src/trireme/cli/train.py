"""``trireme train RUN.YAML``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from trireme.cli.imports import whole_imports
from trireme.cli.verb import Verb
from trireme.words import say


@click.command("train", cls=Verb, help=say("train_verb.help"))
@click.argument("run_file", metavar="RUN.YAML", help=say("cli.run_file"))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", help=say("cli.overrides"))
@click.option("--resume", is_flag=True, help=say("train_verb.resume"))
@click.option("--overwrite", is_flag=True, help=say("train_verb.overwrite"))
@click.option("--extend", type=click.Choice(["stretch", "hold"]), help=say("train_verb.extend"))
@click.option("--accept", metavar="KEY", multiple=True, help=say("train_verb.accept"))
@click.option("--allow-missing", type=click.Choice(["rng"]), multiple=True, help=say("train_verb.allow_missing"))
def command(run_file: str, overrides: tuple[str, ...], **flags: Any) -> int:
    from trireme.config import load_config
    from trireme.job import RunOptions

    options = RunOptions(
        resume=flags["resume"],
        overwrite=flags["overwrite"],
        extend=flags["extend"],
        accept=frozenset(flags["accept"]),
        allow_missing=frozenset(flags["allow_missing"]),
        command=("trireme", "train", run_file, *overrides),
    )
    loaded = load_config(*_settings_of(run_file, overrides))
    with whole_imports():
        from trireme.job import run_training

    return run_training(loaded, options=options).exit_code


def _settings_of(run_file: str, overrides: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Read a run folder as the settings it was made with, in the place where it is."""
    path = Path(run_file)
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml", (f"run.dir={path}", *overrides)
    return path, overrides
