"""``trireme launch (RUN.YAML | SCRIPT.PY) ...``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.numbers import FiniteRange
from trireme.cli.ranks import GOING_ON, RunWords, going_on_words, holds_run, run_ranks, script_program, tell
from trireme.cli.verb import Verb
from trireme.errors import ConfigError
from trireme.words import say

if TYPE_CHECKING:
    from trireme.config import Loaded
    from trireme.supervise import Meeting, Patience, Place, Program


class LaunchVerb(Verb):
    """Options end at the program: what follows is the program's own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.context_settings = {**self.context_settings, "allow_interspersed_args": False}


_SECONDS = FiniteRange(min=0.1)


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
@click.option("--nnodes", default="1", show_default=True, metavar="N|MIN:MAX", help=say("launch.nnodes"))
@click.option("--rdzv-endpoint", metavar="HOST:PORT", help=say("launch.rdzv_endpoint"))
@click.option("--rdzv-id", metavar="ID", help=say("launch.rdzv_id"))
@click.option(
    "--rdzv-timeout", type=_SECONDS, default=60.0, show_default=True, metavar="S", help=say("launch.rdzv_timeout")
)
@click.option("--slurm", is_flag=True, help=say("launch.slurm"))
@click.option("--dry-run", is_flag=True, help=say("launch.dry_run"))
@click.option("--nodes", type=click.IntRange(min=1), metavar="N", help=say("launch.slurm_nodes"))
@click.option("--gpus-per-node", type=click.IntRange(min=1), metavar="N", help=say("launch.slurm_gpus"))
@click.option("--time", "time_limit", metavar="TIME", help=say("launch.slurm_time"))
@click.option("--partition", metavar="NAME", help=say("launch.slurm_partition"))
@click.option("--warn-before", type=click.IntRange(min=1), metavar="S", help=say("launch.slurm_warn"))
@click.option("--extend", type=click.Choice(["stretch", "hold"]), help=say("train_verb.extend"))
@click.option("--accept", metavar="KEY", multiple=True, help=say("train_verb.accept"))
@click.option("--allow-missing", type=click.Choice(["rng"]), multiple=True, help=say("train_verb.allow_missing"))
@click.option("--cold", is_flag=True, help=say("launch.cold"))
@click.option("--log-dir", metavar="DIR", help=say("launch.log_dir"))
def command(program: str, rest: tuple[str, ...], **flags: Any) -> int:
    if flags["slurm"]:
        return _submit(program, rest, flags)
    asked = [option for option, name in _OF_SLURM.items() if flags[name]]
    if asked:
        raise ConfigError("launch.slurm_only", options=", ".join(asked))
    num_ranks = _num_ranks(flags["nproc_per_node"])
    if Path(program).suffix == ".py":
        return _launch_script(program, rest, num_ranks=num_ranks, flags=flags)
    return _launch_run(program, rest, num_ranks=num_ranks, flags=flags)


_OF_SLURM = {
    "--dry-run": "dry_run",
    "--nodes": "nodes",
    "--gpus-per-node": "gpus_per_node",
    "--time": "time_limit",
    "--partition": "partition",
    "--warn-before": "warn_before",
}


def _launch_script(path: str, rest: tuple[str, ...], *, num_ranks: int, flags: dict[str, Any]) -> int:
    asked = [f"--{name.replace('_', '-')}" for name in ("resume", "auto_resume", "overwrite", *GOING_ON) if flags[name]]
    if asked:
        raise ConfigError("launch.run_options", options=", ".join(asked))
    if not Path(path).is_file():
        raise ConfigError("launch.no_program", path=path)
    ready = script_program((path, *rest), warm=not flags["cold"])
    evidence = Path(flags["log_dir"] or Path("runs") / Path(path).stem / "failures")
    terms = _terms(flags, evidence=evidence)
    return run_ranks(lambda place: ready, num_ranks=num_ranks, evidence=evidence, **terms)


def _launch_run(path: str, overrides: tuple[str, ...], *, num_ranks: int, flags: dict[str, Any]) -> int:
    """Start a run, after all that one process alone can refuse."""
    from trireme.job import refit_layout, resolve_layout

    loaded, folder = _read_run(path, overrides, ranks=num_ranks)
    if flags["overwrite"] and (flags["resume"] or flags["auto_resume"]):
        raise ConfigError("job.resume_or_overwrite" if flags["resume"] else "launch.auto_resume_or_overwrite")
    idle = [name for name in GOING_ON if flags[name] and not (flags["resume"] or flags["auto_resume"])]
    if idle:
        raise ConfigError("job.only_with_resume", options=", ".join(f"--{name.replace('_', '-')}" for name in idle))
    is_alone = flags["nnodes"] == "1"
    if is_alone:
        resolve_layout(loaded.config, ranks=num_ranks, notice=lambda text: None)
    run = RunWords(
        run_file=path,
        overrides=overrides,
        begin=("--overwrite",) if flags["overwrite"] else (),
        go_on=going_on_words(flags),
        num_ranks=num_ranks,
    )

    def program(place: Place) -> Program:
        chosen = None if is_alone else refit_layout(loaded.config, ranks=place.world_size, notice=tell)
        return run.program(warm=not flags["cold"], extra=() if chosen is None else (f"layout={chosen}",))

    evidence = Path(flags["log_dir"] or folder / "failures")
    resume = flags["resume"] or (flags["auto_resume"] and holds_run(folder))
    if resume:
        _compare_grace(folder, grace_s=flags["grace"])
    terms = _terms(flags, evidence=evidence)
    return run_ranks(program, num_ranks=num_ranks, evidence=evidence, resume=resume, **terms)


def _compare_grace(folder: Path, *, grace_s: float) -> None:
    """Say before the start that saves have taken longer than a signal would leave for one."""
    path = folder / "events.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
    saves = [json.loads(line) for line in lines if '"durable_s"' in line and line.endswith("}")]
    save_s = max((float(event["data"]["durable_s"]) for event in saves), default=0.0)
    if save_s > grace_s:
        tell(say("launch.grace_short", save_s=save_s, grace_s=grace_s))


def _read_run(path: str, overrides: tuple[str, ...], *, ranks: int) -> tuple[Loaded, Path]:
    """Return a run's settings and its folder."""
    from trireme.cli.train import settings_of
    from trireme.config import load_config
    from trireme.job import run_dir_of

    if not Path(path).exists():
        raise ConfigError("launch.no_program", path=path)
    run_file, words = settings_of(path, overrides)
    loaded = load_config(run_file, words, ranks=ranks)
    return loaded, run_dir_of(asked=loaded.config.run.dir, recipe=loaded.path)


def _submit(path: str, rest: tuple[str, ...], flags: dict[str, Any]) -> int:
    """Write what Slurm is to run, after what can be refused here."""
    from trireme.cli.slurm import submit
    from trireme.supervise import SlurmJob

    ranks = str(flags["gpus_per_node"] or flags["nproc_per_node"])
    if Path(path).suffix == ".py":
        folder = Path("runs") / Path(path).stem
    else:
        folder = _read_run(path, rest, ranks=int(ranks) if ranks.isdigit() else 1)[1]
    job = SlurmJob(
        name=folder.name,
        nodes=flags["nodes"] or 1,
        gpus_per_node=flags["gpus_per_node"],
        time=flags["time_limit"],
        partition=flags["partition"],
        warn_s=flags["warn_before"] or 120,
    )
    words = ["--nproc-per-node", ranks, "--max-restarts", flags["max_restarts"]]
    words += [] if Path(path).suffix == ".py" else ["--auto-resume"]
    return submit(job, words, program=[path, *rest], folder=Path("slurm") / folder.name, dry_run=flags["dry_run"])


def _meeting(flags: dict[str, Any], *, evidence: Path) -> Meeting | None:
    """Return where nodes meet; None for one node."""
    from trireme.supervise import Elastic

    least, most = _nnodes(flags["nnodes"])
    if most == 1:
        return None
    if not flags["rdzv_endpoint"]:
        raise ConfigError("launch.needs_endpoint", nnodes=flags["nnodes"])
    return Elastic(
        endpoint=flags["rdzv_endpoint"],
        launch_id=flags["rdzv_id"] or "trireme",
        least=least,
        most=most,
        timeout_s=flags["rdzv_timeout"],
        done_mark=evidence / f"complete-{flags['rdzv_id']}" if flags["rdzv_id"] else None,
    )


def _nnodes(text: str) -> tuple[int, int]:
    least, _, most = text.partition(":")
    words = (least, most or least)
    if not all(word.isascii() and word.isdigit() and int(word) for word in words) or int(words[0]) > int(words[1]):
        raise ConfigError("launch.bad_nnodes", text=text)
    return int(words[0]), int(words[1])


def _terms(flags: dict[str, Any], *, evidence: Path) -> dict[str, Any]:
    return {
        "meeting": _meeting(flags, evidence=evidence),
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
