"""How right the predictions of a table of runs were: errors, coverage, and who would have run out of memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from trireme.plan.truth_check import RunCheck, framework_word, only_predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorScore:
    """Absolute relative errors of some runs, and their bias (the median error with its sign)."""

    runs: int
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Everything about a table. Doubtful rows are counted apart and are in no error.

    ``coverage`` is the share of measured times inside the 80 % interval. ``oom_called`` is the share of runs out of
    memory that the planner refuses, ``good_refused`` the share of good runs that it refuses.
    """

    rows: int
    predicted: int
    skipped: Mapping[str, int]
    doubtful: int
    time: ErrorScore | None
    time_by_gpu: Mapping[str, ErrorScore]
    time_by_framework: Mapping[str, ErrorScore]
    time_by_layout: Mapping[str, ErrorScore]
    coverage: float | None
    memory: ErrorScore | None
    memory_by_kind: Mapping[str, ErrorScore]
    oom_runs: int
    oom_called: float | None
    good_runs: int
    good_refused: float | None


def score_checks(checks: Sequence[RunCheck]) -> Score:
    """Score the predictions of a table."""
    predicted = only_predicted(checks)
    sound = [check for check in predicted if not check.is_doubtful]
    timed = [check for check in sound if check.time_error is not None]
    weighed = [check for check in sound if check.memory_error is not None and not check.is_oom]
    burst = [check for check in sound if check.is_oom]
    good = [check for check in sound if not check.is_oom]
    return Score(
        rows=len(checks),
        predicted=len(predicted),
        skipped=_counts(check.skipped for check in checks if check.skipped),
        doubtful=len(predicted) - len(sound),
        time=error_score([check.time_error for check in timed]),
        time_by_gpu=_by(timed, lambda check: check.row.text("gpu").split(" ")[0], _time),
        time_by_framework=_by(timed, lambda check: framework_word(check.row), _time),
        time_by_layout=_by(timed, lambda check: check.layout_class, _time),
        coverage=_share(timed, _is_covered),
        memory=error_score([check.memory_error for check in weighed]),
        memory_by_kind=_by(weighed, lambda check: check.row.text("mem_kind") or "not given", _memory),
        oom_runs=len(burst),
        oom_called=_share(burst, lambda check: not check.fits),
        good_runs=len(good),
        good_refused=_share(good, lambda check: not check.fits),
    )


def error_score(errors: Sequence[float | None]) -> ErrorScore | None:
    """Score some errors; None where there are none."""
    known = [error for error in errors if error is not None]
    if not known:
        return None
    sizes = sorted(abs(error) for error in known)
    return ErrorScore(
        runs=len(known),
        median=quantile(sizes, 0.5),
        p90=quantile(sizes, 0.9),
        bias=quantile(sorted(known), 0.5),
    )


def quantile(ordered: Sequence[float], share: float) -> float:
    """Give the value below which that share of sorted values lies, between two of them where it falls between."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def score_json(score: Score) -> dict[str, Any]:
    """Give a score as the report's JSON holds it."""
    return asdict(score)


def _time(check: RunCheck) -> float | None:
    return check.time_error


def _memory(check: RunCheck) -> float | None:
    return check.memory_error


def _is_covered(check: RunCheck) -> bool:
    low_s, high_s, truth_s = check.low_s or 0.0, check.high_s or 0.0, check.truth_s or 0.0
    return low_s <= truth_s <= high_s


def _share(checks: Sequence[RunCheck], holds: Callable[[RunCheck], bool]) -> float | None:
    return sum(holds(check) for check in checks) / len(checks) if checks else None


def _by(
    checks: Sequence[RunCheck], name_of: Callable[[RunCheck], str], error_of: Callable[[RunCheck], float | None]
) -> dict[str, ErrorScore]:
    groups: dict[str, list[float | None]] = defaultdict(list)
    for check in checks:
        groups[name_of(check)].append(error_of(check))
    scores = {name: error_score(errors) for name, errors in groups.items()}
    ordered = sorted(scores.items(), key=lambda item: -(item[1].runs if item[1] else 0))
    return {name: score for name, score in ordered if score is not None}


def _counts(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for reason in reasons:
        counts[reason] += 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
