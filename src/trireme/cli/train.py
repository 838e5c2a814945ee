"""``trireme train RUN.YAML``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.imports import whole_imports
from trireme.cli.verb import Verb
from trireme.words import say

if TYPE_CHECKING:
    from trireme.config import Loaded


@click.command("train", cls=Verb, help=say("train_verb.help"))
@click.argument("run_file", metavar="RUN.YAML", help=say("cli.run_file"))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", help=say("cli.overrides"))
@click.option("--nproc-per-node", type=click.IntRange(min=1), metavar="N", help=say("train_verb.nproc_per_node"))
@click.option("--resume", is_flag=True, help=say("train_verb.resume"))
@click.option("--overwrite", is_flag=True, help=say("train_verb.overwrite"))
@click.option("--extend", type=click.Choice(["stretch", "hold"]), help=say("train_verb.extend"))
@click.option("--accept", metavar="KEY", multiple=True, help=say("train_verb.accept"))
@click.option("--allow-missing", type=click.Choice(["rng"]), multiple=True, help=say("train_verb.allow_missing"))
def command(run_file: str, overrides: tuple[str, ...], **flags: Any) -> int:
    from trireme.config import load_config
    from trireme.job import RunOptions

    num_ranks = flags["nproc_per_node"]
    options = RunOptions(
        resume=flags["resume"],
        overwrite=flags["overwrite"],
        extend=flags["extend"],
        accept=frozenset(flags["accept"]),
        allow_missing=frozenset(flags["allow_missing"]),
        command=("trireme", "train", run_file, *overrides, *_ranks_words(num_ranks)),
    )
    started = int(os.environ.get("WORLD_SIZE", "1") or 1)
    loaded = load_config(*settings_of(run_file, overrides), ranks=num_ranks or started)
    if num_ranks is not None and "RANK" not in os.environ:
        return _start_ranks(loaded, run_file, overrides, num_ranks=num_ranks, flags=flags)
    with whole_imports():
        from trireme.job import run_training

    return run_training(loaded, options=options).exit_code


def _ranks_words(num_ranks: int | None) -> tuple[str, ...]:
    return () if num_ranks is None else ("--nproc-per-node", str(num_ranks))


def _start_ranks(
    loaded: Loaded, run_file: str, overrides: tuple[str, ...], *, num_ranks: int, flags: dict[str, Any]
) -> int:
    """Start the same command once per rank, after all that one process alone can refuse."""
    from trireme.cli.ranks import RunWords, going_on_words, run_ranks
    from trireme.job import resolve_layout, run_dir_of

    resolve_layout(loaded.config, ranks=num_ranks, notice=lambda text: None)
    run = RunWords(
        run_file=run_file,
        overrides=overrides,
        begin=("--overwrite",) if flags["overwrite"] else (),
        go_on=going_on_words(flags),
        num_ranks=num_ranks,
    )
    folder = run_dir_of(asked=loaded.config.run.dir, recipe=loaded.path)
    program = run.program(warm=True)
    return run_ranks(lambda place: program, num_ranks=num_ranks, evidence=folder / "failures", resume=flags["resume"])


def settings_of(run_file: str, overrides: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """Read a run folder as the settings it was made with, in the place where it is."""
    path = Path(run_file)
    if path.is_dir() and (path / "config.yaml").is_file():
        return path / "config.yaml", (f"run.dir={path}", *overrides)
    return path, overrides
