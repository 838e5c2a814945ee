"""``trireme plan MODEL --cluster ...``: which layout, does it fit, how fast, and why not another."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from trireme.cli.numbers import FiniteRange
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb
from trireme.errors import ConfigError
from trireme.words import say

if TYPE_CHECKING:
    from click import Context

    from trireme.cli.plan_problem import Asked
    from trireme.plan import Problem, SearchResult

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _choice(name: str, choices: tuple[str, ...], *, default: str) -> Callable[[_Function], _Function]:
    """An option that takes one of several words."""
    help_text = say(f"plan_cli.{name}")
    return click.option(f"--{name}", type=click.Choice(choices), default=default, show_default=True, help=help_text)


def _seconds(option: str, name: str, *, default: float) -> Callable[[_Function], _Function]:
    return click.option(
        option, type=FiniteRange(min=0), default=default, show_default=True, help=say(f"plan_cli.{name}")
    )


_PRECISIONS = ("fp32", "bf16", "fp16", "bf16_master", "fp16_master", "bf16_pure", "fp8", "fp4")
_OPTIMIZERS = ("adamw", "adamw_bf16", "sgd", "momentum", "adafactor", "lion", "muon")
_KERNELS = ("eager", "flash", "fused", "unflashed")


class PlanVerb(Verb):
    """A command whose first word may be ``check``, which is another command."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: Any
    ) -> Context:
        if args and args[0] == "check":
            from trireme.cli.plan_check import command as check

            return check.make_context(f"{info_name} check", args[1:], parent=parent, **extra)
        return super().make_context(info_name, args, parent=parent, **extra)


@click.command("plan", cls=PlanVerb, help=say("cli.verb_plan"))
@click.argument("model", metavar="NAME|CONFIG.JSON|FILE.PY:BUILD|RUN.YAML", help=say("plan_cli.model"))
@click.option("--cluster", required=True, metavar="h100:8x16|FILE.yaml", help=say("plan_cli.cluster"))
@click.option("--global-batch-seqs", type=click.IntRange(min=1), metavar="N", help=say("plan_cli.batch"))
@click.option("--seq-len", type=click.IntRange(min=1), metavar="T", help=say("plan_cli.seq_len"))
@click.option("--fix", multiple=True, metavar="tp=8,pp=4", help=say("plan_cli.fix"))
@click.option("--why", multiple=True, metavar="tp=4,pp=8", help=say("plan_cli.why"))
@click.option("--fit", is_flag=True, help=say("plan_cli.fit"))
@click.option("--top", type=click.IntRange(min=1, max=50), default=5, show_default=True, help=say("plan_cli.top"))
@click.option("--tokens", metavar="15T", help=say("plan_cli.tokens"))
@_choice("precision", _PRECISIONS, default="bf16")
@_choice("optimizer", _OPTIMIZERS, default="adamw")
@_choice("kernels", _KERNELS, default="fused")
@click.option("--framework", default="trireme", show_default=True, metavar="NAME", help=say("plan_cli.framework"))
@click.option("--offload", is_flag=True, help=say("plan_cli.offload"))
@click.option("--node-mtbf-hours", type=FiniteRange(min=0, min_open=True), metavar="H", help=say("plan_cli.mtbf"))
@_seconds("--checkpoint-s", "checkpoint", default=30.0)
@_seconds("--restart-s", "restart", default=300.0)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), metavar="PLAN.json", help=say("plan_cli.out"))
@click.option(
    "--timeline", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.svg", help=say("plan_cli.timeline")
)
@click.option("--json", "as_json", is_flag=True, help=say("plan_cli.json"))
def command(**given: Any) -> None:
    from trireme.cli.plan_problem import ask

    asked = ask(given)
    print_notes(asked.notices)
    problem, result, smaller = _solve(asked, top=given["top"], fit=given["fit"])
    if given["out"] is not None:
        _write_plan(given["out"], result)
    if given["timeline"] is not None:
        _write_timeline(given["timeline"], result)
    if given["as_json"]:
        from trireme.cli.plan_json import result_json

        print_line(json.dumps(result_json(problem, result, asked), indent=2, ensure_ascii=False))
        return
    from trireme.cli.plan_view import result_lines

    for line in result_lines(problem, result, asked, smaller=smaller):
        print_line(line)
    for path in filter(None, (given["out"], given["timeline"])):
        print_line(say("plan_cli.written", path=path))


def _solve(asked: Asked, *, top: int, fit: bool) -> tuple[Problem, SearchResult, str]:
    """Search on the cluster that was named, or for the smallest of its kind; then also say what stands against less."""
    from dataclasses import replace

    from trireme.plan import fewest_gpus, search

    if not fit:
        return asked.problem, search(asked.problem, top=top), ""
    fewest = fewest_gpus(asked.problem)
    return replace(asked.problem, cluster=fewest.cluster), fewest.result, fewest.smaller


def _write_plan(path: Path, result: SearchResult) -> None:
    from trireme import __version__
    from trireme.plan import format_plan, make_plan

    _write(path, format_plan(make_plan(result.best, version=__version__)))


def _write_timeline(path: Path, result: SearchResult) -> None:
    from trireme.cli.plan_timeline import timeline_svg

    _write(path, timeline_svg(result.best))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("plan_cli.unwritable", path=path, reason=error.strerror or type(error).__name__) from None
