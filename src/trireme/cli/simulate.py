"""``trireme simulate``: one rank of a layout, without devices or other ranks."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trireme.cli.imports import whole_imports
from trireme.cli.terminal import print_line, print_notes
from trireme.cli.verb import Verb
from trireme.errors import ConfigError, VerifyError
from trireme.plan import Plan, parse_plan
from trireme.words import say

if TYPE_CHECKING:
    from trireme.simulate import Simulated

_SEQ_LEN = 128


@click.command("simulate", cls=Verb, help=say("simulate.help"))
@click.argument(
    "plan", metavar="PLAN", required=False, type=click.Path(path_type=Path), help=say("simulate.option_plan")
)
@click.option("--model", metavar="MODEL", help=say("simulate.option_model"))
@click.option("--layout", metavar="TEXT", help=say("simulate.option_layout"))
@click.option("--ranks", type=click.IntRange(min=1), help=say("simulate.option_ranks"))
@click.option("--rank", type=click.IntRange(min=0), default=0, show_default=True, help=say("simulate.option_rank"))
@click.option("--seqs", type=click.IntRange(min=1), help=say("simulate.option_seqs"))
@click.option("--seq-len", type=click.IntRange(min=2), help=say("simulate.option_seq_len"))
@click.option(
    "--dtype", type=click.Choice(["fp32", "fp64"]), default="fp32", show_default=True, help=say("simulate.option_dtype")
)
@click.option(
    "--optimizer",
    type=click.Choice(["adamw", "sgd"]),
    default="adamw",
    show_default=True,
    help=say("simulate.option_optimizer"),
)
@click.option("--json", "as_json", is_flag=True, help=say("simulate.option_json"))
def command(*, plan: Path | None, as_json: bool, **options: Any) -> None:
    if plan is None and options["layout"] is None:
        raise click.UsageError(say("simulate.needs_layout"))
    if plan is not None and options["layout"] is not None:
        raise click.UsageError(say("simulate.two_layouts"))
    read = None if plan is None else _read_plan(plan)
    model = options["model"] or ("" if read is None else _model_of(read))
    if not model:
        raise click.UsageError(say("simulate.needs_model"))
    with whole_imports():
        from trireme.simulate import report_json, report_lines, simulate_rank
    # A module that prints must not spoil the JSON.
    with contextlib.redirect_stdout(sys.stderr):
        found = simulate_rank(_asked(model, read, options))
    if as_json:
        print_line(json.dumps(report_json(found), indent=2, ensure_ascii=False, allow_nan=False))
        return
    print_notes(found.notices)
    for line in report_lines(found):
        print_line(line)


def _asked(model: str, plan: Plan | None, options: dict[str, Any]) -> Simulated:
    from trireme.simulate import Simulated
    from trireme.verify import Source

    source, rank, optimizer = Source(model=model, dtype=options["dtype"]), options["rank"], options["optimizer"]
    seqs, seq_len = options["seqs"], options["seq_len"]
    if plan is None:
        return Simulated(
            source=source,
            layout=options["layout"],
            ranks=options["ranks"] or 1,
            rank=rank,
            seqs=seqs or 0,
            seq_len=seq_len or _SEQ_LEN,
            optimizer=optimizer,
        )
    _check_plan(plan, ranks=options["ranks"])
    return Simulated(
        source=source,
        layout=plan.layout,
        rank=rank,
        seqs=seqs or plan.global_batch_seqs,
        seq_len=seq_len or plan.seq_len,
        cuts=plan.cuts,
        recompute={layer.path: layer.recompute for layer in plan.layers},
        optimizer=optimizer,
    )


def _check_plan(plan: Plan, *, ranks: int | None) -> None:
    needs = plan.layout.world_size
    if ranks is not None and ranks != needs:
        raise VerifyError("simulate.plan_ranks", ranks=ranks, needs=needs)
    offloaded = [layer.path for layer in plan.layers if layer.offload]
    if offloaded:
        raise VerifyError("simulate.plan_offload", path=offloaded[0])


def _read_plan(path: Path) -> Plan:
    try:
        return parse_plan(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError("simulate.plan_unreadable", path=path, reason=reason) from None


def _model_of(plan: Plan) -> str:
    """A plan names its model; only a path or a function can be built."""
    if ":" in plan.model or Path(plan.model).exists():
        return plan.model
    raise VerifyError("simulate.plan_model", name=plan.model)
