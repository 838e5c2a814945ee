"""``trireme chaos RUN.YAML --fault ...``, ``trireme chaos --matrix``."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb
from trireme.errors import ConfigError
from trireme.words import say

if TYPE_CHECKING:
    from trireme.chaos import Bench, Drill, Finding

_TINY_STEPS = 40


@click.command("chaos", cls=Verb, help=say("chaos.help"))
@click.argument("run_file", metavar="[RUN.YAML]", required=False, help=say("cli.run_file"))
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", help=say("cli.overrides"))
@click.option("--fault", "faults", multiple=True, metavar="FAULT", help=say("chaos.fault"))
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help=say("chaos.seed"))
@click.option(
    "--nproc-per-node", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help=say("chaos.nproc")
)
@click.option("--matrix", is_flag=True, help=say("chaos.matrix"))
@click.option("--only", multiple=True, metavar="NAME", help=say("chaos.only"))
@click.option("--table", metavar="PAGE.md", help=say("chaos.table"))
def command(run_file: str | None, overrides: tuple[str, ...], **flags: Any) -> int:
    if flags["matrix"] == bool(run_file and flags["faults"]):
        raise ConfigError("chaos.one_way")
    if flags["matrix"]:
        return _matrix(flags)
    assert run_file is not None
    return _one_run(run_file, overrides, flags)


def _matrix(flags: dict[str, Any]) -> int:
    from trireme.chaos import Bench, format_table, lay_out_tiny, matrix

    only, ranks = flags["only"], flags["nproc_per_node"]
    with tempfile.TemporaryDirectory(prefix="trireme-chaos-") as temporary:
        folder = Path(temporary)
        lay_out_tiny(folder, train={"max_steps": _TINY_STEPS})
        bench = Bench(
            folder=folder,
            run_file="run.yaml",
            ranks=ranks,
            max_steps=_TINY_STEPS,
            words=("--hang-after", "5", "--init-timeout", "40"),
            overrides=("checkpoint.every_steps=10",),
        )
        findings = _carry_out([drill for drill in matrix() if not only or drill.name in only], bench, flags["seed"])
    if flags["table"]:
        typed = " ".join(["trireme chaos --matrix --table", flags["table"]])
        page = format_table(findings, command=typed, ranks=ranks, max_steps=_TINY_STEPS)
        Path(flags["table"]).write_text(page, encoding="utf-8")
    return 0 if all(finding.as_expected for finding in findings) else 1


def _one_run(run_file: str, overrides: tuple[str, ...], flags: dict[str, Any]) -> int:
    """Break a run of the user's: both it and the unbroken one lie beside the run's own folder."""
    from trireme.chaos import Bench, parse_drill
    from trireme.config import load_config
    from trireme.job import run_dir_of

    ranks = flags["nproc_per_node"]
    loaded = load_config(Path(run_file), overrides, ranks=ranks)
    max_steps = loaded.config.train.max_steps
    if max_steps is None:
        raise ConfigError("chaos.needs_steps")
    drills = [parse_drill(text, max_steps=max_steps, ranks=ranks, seed=flags["seed"]) for text in flags["faults"]]
    folder = run_dir_of(asked=loaded.config.run.dir, recipe=loaded.path)
    beside = folder.with_name(f"{folder.name}-chaos")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    bench = Bench(
        folder=Path.cwd(),
        run_file=run_file,
        ranks=ranks,
        max_steps=max_steps,
        overrides=overrides,
        prefix=f"{beside}/",
    )
    findings = _carry_out(drills, bench, flags["seed"])
    return 0 if all(finding.as_expected for finding in findings) else 1


def _carry_out(drills: list[Drill], bench: Bench, seed: int) -> list[Finding]:
    from trireme.chaos import carry_out, run_unbroken

    findings: list[Finding] = []
    references: dict[str, Path] = {}
    for number, drill in enumerate(drills):
        # A step that is left out has an undisturbed run of its own: one that skips it.
        skips = drill.in_process if drill.end == "skipped" else ""
        if skips not in references:
            settings = ("train.on_spike=skip",) if skips else ()
            name = f"skipped-{number}" if skips else "unbroken"
            references[skips] = run_unbroken(bench, name=name, fault=skips, overrides=settings)
        print_line(say("chaos.doing", drill=drill, overrides=" ".join(drill.overrides)))
        finding = carry_out(drill, bench=bench, name=f"broken-{number}", reference=references[skips], seed=seed)
        findings.append(finding)
        print_line(
            say(
                "chaos.found",
                found_by=finding.found_by,
                detail=f"({finding.detail})" if finding.detail else "",
                again=finding.again_steps,
                ended=say(f"chaos.ended_{finding.ended}"),
            )
        )
    return findings
