"""A simulated rank holds and sends what a real one does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ranks.simulated_rank import measure_really
from trireme.errors import VerifyError
from trireme.mesh import run_on_ranks
from trireme.simulate import Simulated, simulate_rank
from trireme.verify import Source

_QWEN = f"{Path(__file__).parents[2] / 'recipes/zoo/qwen3.py'}:build"
_SEQS, _SEQ_LEN, _RANKS = 8, 16, 4
_LAYOUTS = ("dp=2,tp=2", "zero3,dp=2,tp=2", "zero1,dp=2,pp=2,micro=2", "recompute=full,zero2,dp=4")


def _asked(layout: str, *, rank: int = 0) -> Simulated:
    return Simulated(source=Source(model=_QWEN), layout=layout, ranks=_RANKS, rank=rank, seqs=_SEQS, seq_len=_SEQ_LEN)


@pytest.mark.parametrize("layout", _LAYOUTS)
def test_first_rank_has_the_peak_and_the_collectives_of_a_real_one(layout: str) -> None:
    real = run_on_ranks(
        measure_really, _RANKS, model=_QWEN, layout_text=layout, world=_RANKS, seqs=_SEQS, seq_len=_SEQ_LEN
    )[0]
    found = simulate_rank(_asked(layout)).measured
    assert found.calls == real.calls
    assert found.moved_bytes == real.moved_bytes
    assert found.peak == real.peak


def test_last_stage_sends_and_receives_what_a_real_one_does() -> None:
    layout = "dp=2,pp=2,micro=2"
    real = run_on_ranks(
        measure_really, _RANKS, model=_QWEN, layout_text=layout, world=_RANKS, seqs=_SEQS, seq_len=_SEQ_LEN
    )[-1]
    found = simulate_rank(_asked(layout, rank=_RANKS - 1)).measured
    assert (found.calls, found.moved_bytes) == (real.calls, real.moved_bytes)
    # A real gradient lies in memory until the other rank has taken it; that is a matter of chance.
    message_bytes = _SEQS // 4 * _SEQ_LEN * 32 * 4
    assert abs(found.peak.num_bytes - real.peak.num_bytes) <= message_bytes


def test_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(VerifyError, match="0 to 3"):
        simulate_rank(_asked("tp=2", rank=4))


def test_experts_on_several_ranks_are_refused_by_name() -> None:
    with pytest.raises(VerifyError, match="ep=2"):
        simulate_rank(_asked("dp=4,ep=2"))
