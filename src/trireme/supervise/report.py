"""What a person reads when an attempt ends badly: who failed first, why, and who only followed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from trireme.supervise.failure import Failure
from trireme.words import say

_KEPT = ("*.stack", "*.failure", "*.flight")


def format_report(cause: Failure, *, failures: Sequence[Failure], attempt: int, lasted_s: float, kept: Path) -> str:
    """Return the report of one attempt, a few lines."""
    rank = "-" if cause.rank is None else cause.rank
    lines = [
        say(
            "launch.failed",
            attempt=attempt,
            rank=rank,
            host=cause.host,
            step=cause.step,
            lasted_s=lasted_s,
            message=cause.message,
        )
    ]
    lines += [f"    {line}" for line in cause.traceback.splitlines()]
    others = [failure for failure in failures if failure is not cause and failure.rank is not None]
    if others:
        names = ", ".join(f"{failure.rank} ({failure.exit_code})" for failure in sorted(others, key=_rank_of))
        lines.append("  " + say("launch.followed", ranks=names))
    lines.append("  " + say("launch.kept", path=kept))
    return "\n".join(lines)


def keep_evidence(folder: Path, into: Path, *, failures: Sequence[Failure], cause: Failure) -> None:
    """Copy stacks, records and flight records of an attempt to where they stay."""
    into.mkdir(parents=True, exist_ok=True)
    for pattern in _KEPT:
        for path in folder.glob(pattern):
            if path.stat().st_size:
                shutil.copyfile(path, into / path.name)
    told = {"cause": cause.to_json(), "failures": [failure.to_json() for failure in failures]}
    (into / "report.json").write_text(json.dumps(told, ensure_ascii=False, indent=2), encoding="utf-8")


def read_stacks(folder: Path, ranks: range) -> Mapping[int, str]:
    """Return what ranks wrote of their stacks."""
    paths = {rank: folder / f"rank-{rank}.stack" for rank in ranks}
    return {rank: path.read_text(errors="replace") if path.exists() else "" for rank, path in paths.items()}


def _rank_of(failure: Failure) -> int:
    return -1 if failure.rank is None else failure.rank
