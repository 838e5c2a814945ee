"""Fit the planner's rates to published runs, and say how well they predict runs that they weren't fitted to.

    python benchmarks/fit_planner.py [--write]

Few rates, all physical: how far kernels, links and hosts fall short of their sheets, by generation of accelerator.
Each source and model weighs as the root of its number of runs, so that a table of sixty runs doesn't count sixty
times. Errors are told by leaving out every group (a source with a model) in turn.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import date
from pathlib import Path

import numpy as np

from trireme.plan.time_pipeline import Effort
from trireme.plan.time_rates import Rates, family_of
from trireme.plan.time_step import step_seconds
from trireme.plan.time_table import PRIORS, RATES
from trireme.plan.truth_row import Row, Unreadable, read_rows
from trireme.plan.truth_workload import Run, run_of

RUNS = Path(__file__).parent / "data" / "published_runs.csv"
LEFT_OUT = Path(__file__).parent / "data" / "left_out.json"
TABLE = Path(__file__).parents[1] / "src" / "trireme" / "plan" / "time_table.py"

OWN = ("products", "narrow", "attention", "library_attention", "fused_traffic", "eager_traffic")
"""Rates that each generation has of its own; the others are shared by all."""
SHARED = tuple(field.name for field in fields(Rates) if field.name not in OWN)
FAMILIES = ("volta", "ampere", "hopper", "blackwell")

PRIOR_SPREAD = 0.5
"""How far from its prior a rate may lie at the cost of one unit of misfit, as a logarithm."""
NOISE = 0.12
"""The misfit of a run that counts one unit, as a logarithm: two published runs of one setting differ by that much."""
KNEE = 2.0
"""Beyond so many units a run pulls no harder: some tables hold mistakes."""


@dataclass(frozen=True)
class Case:
    """A run to fit."""

    run: Run
    family: str
    group: str
    log_step: float
    weight: float


Key = tuple[str, str]
"""A family, or "all", and a rate."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the fitted rates into plan/time_table.py")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    cases = load_cases(RUNS)
    keys = keys_of(cases)
    values, jacobian, misfit = fit(cases, keys, rounds=arguments.rounds)
    print_rates(keys, values)
    held_out = leave_groups_out(cases, keys, values, jacobian, misfit)
    print_groups(cases, misfit, held_out)
    report("in sample", misfit)
    report("left out", held_out)
    if arguments.write:
        write_table(keys, values, held_out, cases)


def load_cases(path: Path) -> list[Case]:
    """Give every run of the table that has a time and can be predicted; doubtful rows are left out of a fit."""
    runs = list(_runs(read_rows(path.read_text(encoding="utf-8"), path=str(path))))
    sizes: dict[str, int] = defaultdict(int)
    for run in runs:
        sizes[group_of(run.row)] += 1
    return [
        Case(
            run=run,
            family=family_of(run.workload.cluster.accelerator),
            group=group_of(run.row),
            log_step=math.log(run.step_s or 1.0),
            weight=1 / math.sqrt(sizes[group_of(run.row)]),
        )
        for run in runs
    ]


def _runs(rows: Iterable[Row]) -> Iterable[Run]:
    for row in rows:
        if row.text("data_warning") or not row.text("step_s"):
            continue
        try:
            run = run_of(row)
        except Unreadable:
            continue
        if not run.is_layers_only and family_of(run.workload.cluster.accelerator) in FAMILIES:
            yield run


def group_of(row: Row) -> str:
    """A source (without section, table and revision) and a model."""
    source = re.split(r" @| \(| table| section| Table|, ", row.text("source"))[0]
    return f"{source} | {row.text('model')}"


def keys_of(cases: Sequence[Case]) -> list[Key]:
    """Rates to fit: those of families that the runs hold, and the shared ones."""
    present = [family for family in FAMILIES if any(case.family == family for case in cases)]
    return [(family, name) for family in present for name in OWN] + [("all", name) for name in SHARED]


def rates_for(family: str, keys: Sequence[Key], values: np.ndarray) -> Rates:
    """Give one family's rates out of the fitted logarithms."""
    mine = {
        name: math.exp(value) for (owner, name), value in zip(keys, values, strict=True) if owner in (family, "all")
    }
    return replace(PRIORS[family], **mine)


def residuals(
    cases: Sequence[Case], keys: Sequence[Key], values: np.ndarray, *, effort: Effort = "steady"
) -> np.ndarray:
    """Logarithm of predicted over published, run by run."""
    rates = {family: rates_for(family, keys, values) for family in FAMILIES}
    seconds = [step_seconds(case.run.workload, rates=rates[case.family], effort=effort) for case in cases]
    return np.array([math.log(value) - case.log_step for value, case in zip(seconds, cases, strict=True)])


def logarithms(table: Mapping[str, Rates], keys: Sequence[Key]) -> np.ndarray:
    """Give the rates of a table in the order of the keys."""
    return np.array([math.log(getattr(table[owner if owner != "all" else "ampere"], name)) for owner, name in keys])


def fit(cases: Sequence[Case], keys: Sequence[Key], *, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Gauss-Newton on logarithms with priors, from the rates that stand; misfits beyond the knee pull no harder."""
    prior, values = logarithms(PRIORS, keys), logarithms(RATES, keys)
    misfit = residuals(cases, keys, values, effort="formula")
    jacobian = np.zeros((len(cases), len(keys)))
    for round_number in range(rounds):
        jacobian = slopes(cases, keys, values, misfit)
        step = solve(cases, jacobian, misfit, values - prior)
        step = np.clip(step, -0.35, 0.35)
        values = values + step
        misfit = residuals(cases, keys, values, effort="formula")
        print(f"round {round_number + 1}: median {np.median(np.abs(np.expm1(misfit))):.3f}", flush=True)
        if np.abs(step).max() < 0.01:
            break
    return values, jacobian, residuals(cases, keys, values)


def slopes(cases: Sequence[Case], keys: Sequence[Key], values: np.ndarray, misfit: np.ndarray) -> np.ndarray:
    """How each run's misfit answers to each rate, by a small step up; the pipeline's formula is enough for that."""
    jacobian = np.zeros((len(cases), len(keys)))
    for column, (owner, _) in enumerate(keys):
        touched = [index for index, case in enumerate(cases) if owner in (case.family, "all")]
        moved = values.copy()
        moved[column] += 0.02
        changed = residuals([cases[index] for index in touched], keys, moved, effort="formula")
        jacobian[touched, column] = (changed - misfit[touched]) / 0.02
    return jacobian


def solve(cases: Sequence[Case], jacobian: np.ndarray, misfit: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """One step: weighted least squares, the weights falling beyond the knee."""
    units = np.abs(misfit) / NOISE
    pull = np.array([case.weight for case in cases]) / NOISE * np.sqrt(np.minimum(1.0, KNEE / np.maximum(units, 1e-9)))
    count = jacobian.shape[1]
    rows = np.vstack([jacobian * pull[:, None], np.eye(count) / PRIOR_SPREAD])
    goal = np.concatenate([-misfit * pull, -offset / PRIOR_SPREAD])
    return np.linalg.lstsq(rows, goal, rcond=None)[0]


def leave_groups_out(
    cases: Sequence[Case], keys: Sequence[Key], values: np.ndarray, jacobian: np.ndarray, misfit: np.ndarray
) -> np.ndarray:
    """Fit again without each group, and give the misfit of the group's runs under those rates.

    One Gauss-Newton step from the common fit is the new fit; the group's own runs are then predicted in full.
    """
    prior = logarithms(PRIORS, keys)
    held_out = np.zeros(len(cases))
    for group in sorted({case.group for case in cases}):
        inside = [index for index, case in enumerate(cases) if case.group == group]
        rest = [index for index in range(len(cases)) if cases[index].group != group]
        others = [cases[index] for index in rest]
        moved = values + solve(others, jacobian[rest], misfit[rest], values - prior)
        held_out[inside] = residuals([cases[index] for index in inside], keys, moved)
    return held_out


def report(name: str, misfit: np.ndarray) -> None:
    errors = np.abs(np.expm1(misfit))
    print(f"{name}: {len(errors)} runs, median {np.median(errors):.3f}, p90 {np.quantile(errors, 0.9):.3f}")


def print_rates(keys: Sequence[Key], values: np.ndarray) -> None:
    for (owner, name), value in zip(keys, values, strict=True):
        print(f"  {owner:10} {name:15} {math.exp(value):.4g}")


def print_groups(cases: Sequence[Case], misfit: np.ndarray, held_out: np.ndarray) -> None:
    groups: dict[str, list[int]] = defaultdict(list)
    for index, case in enumerate(cases):
        groups[case.group].append(index)
    for group, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        ratios = [math.exp(misfit[index]) for index in members]
        left = statistics.median(math.exp(held_out[index]) for index in members)
        print(
            f"{len(members):4} {statistics.median(ratios):5.2f} ({min(ratios):.2f}..{max(ratios):.2f})"
            f" left out {left:5.2f}  {group}"
        )


KINDS = ("dense", "experts")
"""What intervals are told apart by: routed experts are much harder to foresee."""


def kind_of(case: Case) -> str:
    """Give the kind whose interval a run has."""
    ops = (op for stack in case.run.workload.model.stacks for block in stack.blocks for op in block.ops)
    return "experts" if any(op.experts is not None for op in ops) else "dense"


def spread(misfit: np.ndarray) -> tuple[float, float]:
    """Give the interval's ends over the prediction, so that a tenth of the runs lie beyond each."""
    return float(np.exp(-np.quantile(misfit, 0.9))), float(np.exp(-np.quantile(misfit, 0.1)))


def spreads(cases: Sequence[Case], held_out: np.ndarray) -> dict[str, tuple[float, float]]:
    """Give each kind's interval from the misfits of left-out runs."""
    kinds = np.array([kind_of(case) for case in cases])
    return {kind: spread(held_out[kinds == kind]) for kind in KINDS}


def left_out_report(cases: Sequence[Case], held_out: np.ndarray) -> dict[str, dict[str, float]]:
    """Give each run's ratio, and whether it lies in an interval made from other groups."""
    kinds, groups = np.array([kind_of(case) for case in cases]), np.array([case.group for case in cases])
    rows = {}
    for group in sorted(set(groups)):
        for kind in KINDS:
            others = held_out[(groups != group) & (kinds == kind)]
            low, high = spread(others)
            for index in np.flatnonzero((groups == group) & (kinds == kind)):
                ratio = math.exp(held_out[index])
                rows[cases[index].run.row.id] = {"ratio": round(ratio, 4), "inside": int(low <= 1 / ratio <= high)}
    return rows


def write_table(keys: Sequence[Key], values: np.ndarray, held_out: np.ndarray, cases: Sequence[Case]) -> None:
    """Write the fitted rates and the spread of left-out runs between the marks of plan/time_table.py."""
    lines = ["RATES: Mapping[str, Rates] = MappingProxyType(", "    {"]
    for family in FAMILIES:
        rates = rates_for(family, keys, values)
        lines.append(f'        "{family}": Rates(')
        lines += [f"            {field.name}={getattr(rates, field.name):.4g}," for field in fields(Rates)]
        lines.append("        ),")
    lines += ["    }", ")", f'"""Fitted on {date.today().isoformat()}."""', ""]
    lines += ["SPREADS: Mapping[str, Spread] = MappingProxyType(", "    {"]
    lines += [
        f'        "{kind}": Spread({low:.3f}, {high:.3f}),' for kind, (low, high) in spreads(cases, held_out).items()
    ]
    lines += ["    }", ")", '"""Where a tenth of left-out runs lie below, and a tenth above."""']
    text = TABLE.read_text(encoding="utf-8")
    start, end = text.index("# fitted: begin\n") + len("# fitted: begin\n"), text.index("# fitted: end")
    TABLE.write_text(text[:start] + "\n".join(lines) + "\n" + text[end:], encoding="utf-8")
    report_rows = left_out_report(cases, held_out)
    LEFT_OUT.write_text(json.dumps(report_rows, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
