"""``trireme plan check``: the planner held against runs that others measured."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from trireme.cli.terminal import print_line
from trireme.cli.verb import Verb
from trireme.errors import ConfigError
from trireme.plan import ErrorScore, RunCheck, Score, check_runs, row_json, score_checks, score_json
from trireme.words import say

_SHOWN = 12


@click.command("check", cls=Verb, help=say("truth.help"))
@click.argument("runs", metavar="RUNS.csv", type=click.Path(path_type=Path), help=say("truth.help_runs"))
@click.option("--json", "report", metavar="OUT.json", type=click.Path(path_type=Path), help=say("truth.help_json"))
def command(*, runs: Path, report: Path | None) -> None:
    checks = check_runs(read_table(runs), path=str(runs))
    score = score_checks(checks)
    if report is not None:
        write_report(report, checks, score)
    for line in score_lines(score):
        print_line(line)


def read_table(path: Path) -> str:
    """Read a table of runs.

    Raises:
        ConfigError: There is no such file, or it is no text.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError("truth.unreadable", path=path, reason=error.strerror or type(error).__name__) from None
    except UnicodeDecodeError:
        raise ConfigError("truth.no_text", path=path) from None


def write_report(path: Path, checks: list[RunCheck], score: Score) -> None:
    """Write every row and the summary as JSON.

    Raises:
        ConfigError: The file can't be written.
    """
    document = {"rows": [row_json(check) for check in checks], "summary": score_json(score)}
    try:
        path.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError("truth.unwritable", path=path, reason=error.strerror or type(error).__name__) from None


def score_lines(score: Score) -> list[str]:
    """Give what a person reads of a score."""
    skipped = score.rows - score.predicted
    lines = [say("truth.rows", rows=score.rows, predicted=score.predicted, skipped=skipped, doubtful=score.doubtful)]
    if score.time is not None:
        lines.append(say("truth.time", coverage=_percent(score.coverage), **_values(score.time)))
    if score.memory is not None:
        lines.append(say("truth.memory", **_values(score.memory)))
    if score.oom_called is not None:
        lines.append(say("truth.oom_called", runs=score.oom_runs, share=_percent(score.oom_called)))
    if score.good_refused is not None:
        lines.append(say("truth.good_refused", runs=score.good_runs, share=_percent(score.good_refused)))
    lines += _table(say("truth.by_gpu"), score.time_by_gpu)
    lines += _table(say("truth.by_framework"), score.time_by_framework)
    lines += _table(say("truth.by_layout"), score.time_by_layout)
    lines += _table(say("truth.by_kind"), score.memory_by_kind)
    if skipped:
        lines += ["", say("truth.why_skipped")]
        lines += [f"{count:6}  {reason}" for reason, count in list(score.skipped.items())[:_SHOWN]]
    return lines


def _table(title: str, scores: Mapping[str, ErrorScore]) -> list[str]:
    if not scores:
        return []
    rows = [say("truth.row", name=f"{name:40.40}", **_values(score)) for name, score in list(scores.items())[:_SHOWN]]
    return ["", title, *rows]


def _values(score: ErrorScore) -> dict[str, str]:
    return {
        "runs": f"{score.runs:5}",
        "median": _percent(score.median),
        "p90": _percent(score.p90),
        "bias": f"{100 * score.bias:+6.1f} %",
    }


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:5.1f} %"
