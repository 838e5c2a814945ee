"""``trireme launch (RUN.YAML | SCRIPT.PY) ...``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.ranks import RunWords, holds_run, run_ranks, script_program
from trireme.cli.verb import Verb
from trireme.errors import ConfigError
from trireme.words import say

if TYPE_CHECKING:
    from trireme.supervise import Patience, Place, Program


class LaunchVerb(Verb):
    """Options end at the program: what follows is the program's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}


_SECONDS = click.FloatRange(min=0.1)


@click.command("launch", cls=LaunchVerb, help=say("launch.help"))
@click.argument("program", metavar="PROGRAM", help=say("launch.program"))
@click.argument("rest", nargs=-1, type=click.UNPROCESSED, metavar="[WORD]...", help=say("launch.rest"))
@click.option("--nproc-per-node", default="auto", metavar="N|auto", help=say("launch.nproc"))
@click.option(
    "--max-restarts", default="3/10min", show_default=True, metavar="N[/TIME]", help=say("launch.max_restarts")
)
@click.option(
    "--same-rank-limit", type=click.IntRange(min=1), default=2, show_default=True, help=say("launch.same_rank")
)
@click.option(
    "--hang-after", type=_SECONDS, default=10.0, show_default=True, metavar="S", help=say("launch.hang_after")
)
@click.option(
    "--long-after", type=_SECONDS, default=1800.0, show_default=True, metavar="S", help=say("launch.long_after")
)
@click.option(
    "--init-timeout", type=_SECONDS, default=300.0, show_default=True, metavar="S", help=say("launch.init_timeout")
)
@click.option("--grace", type=_SECONDS, default=600.0, show_default=True, metavar="S", help=say("launch.grace"))
@click.option("--resume", is_flag=True, help=say("train_verb.resume"))
@click.option("--auto-resume", is_flag=True, help=say("launch.auto_resume"))
@click.option("--overwrite", is_flag=True, help=say("train_verb.overwrite"))
@click.option("--cold", is_flag=True, help=say("launch.cold"))
@click.option("--log-dir", metavar="DIR", help=say("launch.log_dir"))
def command(program: str, rest: tuple[str, ...], **flags: Any) -> int:
    num_ranks = _num_ranks(flags["nproc_per_node"])
    if Path(program).suffix == ".py":
        return _launch_script(program, rest, num_ranks=num_ranks, flags=flags)
    return _launch_run(program, rest, num_ranks=num_ranks, flags=flags)


def _launch_script(path: str, rest: tuple[str, ...], *, num_ranks: int, flags: dict[str, Any]) -> int:
    asked = [f"--{name.replace('_', '-')}" for name in ("resume", "auto_resume", "overwrite") if flags[name]]
    if asked:
        raise ConfigError("launch.run_options", options=", ".join(asked))
    if not Path(path).is_file():
        raise ConfigError("launch.no_program", path=path)
    ready = script_program((path, *rest), warm=not flags["cold"])
    evidence = Path(flags["log_dir"] or Path("runs") / Path(path).stem / "failures")
    return run_ranks(lambda place: ready, num_ranks=num_ranks, evidence=evidence, **_terms(flags))


def _launch_run(path: str, overrides: tuple[str, ...], *, num_ranks: int, flags: dict[str, Any]) -> int:
    """Start a run, after all that one process alone can refuse."""
    from trireme.cli.train import settings_of
    from trireme.config import load_config
    from trireme.job import resolve_layout, run_dir_of

    if not Path(path).exists():
        raise ConfigError("launch.no_program", path=path)
    run_file, words = settings_of(path, overrides)
    loaded = load_config(run_file, words, ranks=num_ranks)
    resolve_layout(loaded.config, ranks=num_ranks, notice=lambda text: None)
    folder = run_dir_of(asked=loaded.config.run.dir, recipe=loaded.path)
    resume = flags["resume"] or (flags["auto_resume"] and holds_run(folder))
    if flags["resume"] and flags["overwrite"]:
        raise ConfigError("job.resume_or_overwrite")
    run = RunWords(
        run_file=path,
        overrides=overrides,
        begin=("--overwrite",) if flags["overwrite"] else (),
        num_ranks=num_ranks,
    )

    def program(place: Place) -> Program:
        return run.program(warm=not flags["cold"])

    evidence = Path(flags["log_dir"] or folder / "failures")
    return run_ranks(program, num_ranks=num_ranks, evidence=evidence, resume=resume, **_terms(flags))


def _terms(flags: dict[str, Any]) -> dict[str, Any]:
    return {
        "max_restarts": flags["max_restarts"],
        "same_rank_limit": flags["same_rank_limit"],
        "patience": _patience(flags),
        "grace_s": flags["grace"],
    }


def _patience(flags: dict[str, Any]) -> Patience:
    from trireme.supervise import Patience

    return Patience(hang_s=flags["hang_after"], long_s=flags["long_after"], init_s=flags["init_timeout"])


def _num_ranks(text: str) -> int:
    """Read the number of ranks; ``auto`` is that of this machine's devices, one where there is no accelerator."""
    if text == "auto":
        from trireme.mesh import num_devices

        return num_devices()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError("launch.bad_nproc", text=text)
    return int(text)
