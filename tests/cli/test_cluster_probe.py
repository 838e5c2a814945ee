"""``trireme cluster probe`` measures this machine and writes what the planner reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.cli import main
from trireme.cluster import load_cluster


def test_what_is_measured_reads_back_as_a_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "cluster.yaml"
    assert main(["cluster", "probe", "--out", str(out), "--ranks", "2", "--seconds", "0.02"]) == 0
    assert str(out) in capsys.readouterr().out
    cluster = load_cluster(str(out))
    assert cluster.num_ranks == 2
    assert cluster.accelerator.peak_flops_per_s["float32"] > 0
    assert cluster.accelerator.memory_bytes_per_s > 0
    assert cluster.intra.bytes_per_s > 0


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "no" / "cluster.yaml"
    assert main(["cluster", "probe", "--out", str(out), "--ranks", "1", "--seconds", "0.01"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
