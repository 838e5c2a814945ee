"""``trireme plan check`` predicts any table of runs, skips what can't be, and says why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trireme.cli import main

HEADER = "id,model,layers,hidden,ffn,act,heads,kv_heads,vocab,seq_len,gpu,gpu_count,tp,pp,dp,mbs,gbs,framework,step_s"
GOOD = "a,Mystery-7B,32,4096,11008,swiglu,32,32,32000,4096,H100-80GB-SXM,8,1,1,8,1,128,NeMo,4.0"


def _table(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _report(tmp_path: Path, *lines: str) -> dict[str, object]:
    out = tmp_path / "out.json"
    assert main(["plan", "check", str(_table(tmp_path, *lines)), "--json", str(out)]) == 0
    report: dict[str, object] = json.loads(out.read_text(encoding="utf-8"))
    return report


def test_a_model_of_unknown_name_is_predicted_by_its_dimensions(tmp_path: Path) -> None:
    (row,) = _report(tmp_path, HEADER, GOOD)["rows"]  # type: ignore[misc]
    assert row["id"] == "a"
    assert 0 < row["step_s_low"] < row["step_s"] < row["step_s_high"]
    assert row["peak_bytes"] > 0


def test_an_unknown_accelerator_is_skipped_with_the_nearest_names(tmp_path: Path) -> None:
    (row,) = _report(tmp_path, HEADER, GOOD.replace("H100-80GB-SXM", "Z9000"))["rows"]  # type: ignore[misc]
    assert "Z9000" in row["skipped"]
    assert "step_s" not in row


def test_one_unreadable_row_stops_no_other(tmp_path: Path) -> None:
    rows = _report(tmp_path, HEADER, GOOD.replace(",32,4096,", ",many,4096,"), GOOD)["rows"]
    assert "many" in rows[0]["skipped"]  # type: ignore[index]
    assert rows[1]["step_s"] > 0  # type: ignore[index]


def test_the_summary_scores_what_was_measured(tmp_path: Path) -> None:
    summary = _report(tmp_path, HEADER, GOOD)["summary"]
    assert summary["predicted"] == 1  # type: ignore[index]
    assert summary["time"]["runs"] == 1  # type: ignore[index]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((), "no runs"),
        ((HEADER,), "no runs"),
        (("id,step_s", "a,1"), "lacks the columns"),
        ((HEADER, GOOD + ",one too many"), "line 2"),
        ((HEADER, '"' + GOOD), "line 2"),
    ],
)
def test_a_broken_table_is_one_line_and_exit_2(
    lines: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "check", str(_table(tmp_path, *lines))]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert said in line


def test_a_missing_table_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "check", str(tmp_path / "none.csv")]) == 2
    assert "none.csv" in capsys.readouterr().err
