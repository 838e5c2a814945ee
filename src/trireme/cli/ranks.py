"""From a command to ranks under supervision: what ``trireme launch`` and ``trireme train --nproc-per-node`` share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.words import say

if TYPE_CHECKING:
    from trireme.supervise import Meeting, Patience, Place, Program

MAIN = "trireme.cli:main"
_OF_A_RUN = ("trireme.mesh.preload", "trireme.cli.program", "trireme.cli.train", "trireme.job.train")
_OF_A_SCRIPT = ("trireme.mesh.preload",)
_RUN_STATE = "run.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWords:
    """A run as one types it after ``trireme train``, but for how it begins.

    Attributes:
        run_file: The settings or a run folder.
        overrides: ``key=value``.
        begin: Options of a first attempt that begins (``--overwrite``).
        go_on: Options of an attempt that goes on, without ``--resume``.
        num_ranks: Ranks of a node, for the command that the run shows.
    """

    run_file: str
    overrides: tuple[str, ...]
    begin: tuple[str, ...] = ()
    go_on: tuple[str, ...] = ()
    num_ranks: int = 1

    def program(self, *, warm: bool, extra: Sequence[str] = ()) -> Program:
        """Return what ranks run; ``extra`` are overrides of one attempt."""
        from trireme.supervise import Program

        words = ("train", self.run_file, *self.overrides, *extra, "--nproc-per-node", str(self.num_ranks))
        return Program(
            arguments=(*words, *self.begin),
            resumed=(*words, "--resume", *self.go_on),
            main=MAIN,
            warm=warm,
            preload=_OF_A_RUN,
        )


GOING_ON = ("extend", "accept", "allow_missing")
"""Options that say what may differ when a run goes on."""


def going_on_words(flags: Mapping[str, Any]) -> tuple[str, ...]:
    """Return those options as one types them."""
    words: list[str] = []
    for name in GOING_ON:
        given = flags[name] or ()
        for value in (given,) if isinstance(given, str) else given:
            words += [f"--{name.replace('_', '-')}", value]
    return tuple(words)


def script_program(arguments: tuple[str, ...], *, warm: bool) -> Program:
    """Return what ranks run where a script is trained; going on is the script's own affair."""
    from trireme.supervise import Program

    return Program(arguments=arguments, resumed=arguments, main=MAIN, is_script=True, warm=warm, preload=_OF_A_SCRIPT)


def holds_run(folder: Path) -> bool:
    """Whether there is a run in it to go on with."""
    return (folder / _RUN_STATE).is_file()


def run_ranks(
    words: Callable[[Place], Program],
    *,
    num_ranks: int,
    evidence: Path,
    resume: bool = False,
    max_restarts: str = "0",
    same_rank_limit: int = 2,
    patience: Patience | None = None,
    grace_s: float = 600.0,
    meeting: Meeting | None = None,
) -> int:
    """Run a program on this machine's ranks under supervision and return the exit code."""
    from trireme.supervise import History, Patience, Terms, parse_budget, supervise

    terms = Terms(
        num_ranks=num_ranks,
        history=History(budget=parse_budget(max_restarts), same_rank_limit=same_rank_limit),
        patience=patience or Patience(),
        grace_s=grace_s,
        evidence=evidence,
        notice=tell,
    )
    return supervise(words, terms=terms, meeting=meeting, resume=resume)


def tell(text: str) -> None:
    """Say something about the ranks, beside what they print."""
    click.echo(say("launch.said", text=text), err=True)
