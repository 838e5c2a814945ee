"""Kill -9 at random moments, a few times; the drill of 200 is ``python -m trireme.testing.soak``."""

from __future__ import annotations

from pathlib import Path

from trireme.testing.soak import soak


def test_a_run_that_is_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    result = soak(tmp_path, kills=3, ranks=2, seed=3)
    assert result.is_good, result
    assert sum(result.kills.values()) == 3
