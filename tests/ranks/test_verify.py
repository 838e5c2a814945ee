"""``verify`` on ranks: what is right passes, every spoiled run is caught, and ranks that fail end in a line."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from trireme.errors import LayoutError, ModelError, RankFailed, VerifyError
from trireme.mesh import preload_on_ranks
from trireme.verify import Memory, Request, Source, verify
from trireme.verify.run import FACTORY

ZOO = Path(__file__).parents[2] / "recipes" / "zoo"
MEMORY = Memory()
preload_on_ranks("trireme.verify.preload")


def run(name, layout, *, ranks=2, factory="by_hand:build", dtype="fp32", **options):
    source = Source(model=f"{ZOO / name}.py:build", dtype=dtype)
    return verify(
        Request(source=source, layout=layout, ranks=ranks, factory=factory, timeout_s=60, **options), memory=MEMORY
    )


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
@pytest.mark.parametrize("name", ["gpt2_tied", "padded", "looped_experts", "t5"])
def test_data_parallel_by_hand_is_equal(name, dtype):
    report = run(name, "dp=2,micro=2", dtype=dtype)
    assert report.ok, list(report.lines())
    assert report.local_param_ratio == 1.0
    assert report.to_json()["path"] == "by hand"


@pytest.mark.parametrize("fault", ["token-scale", "dp-average", "dp-rows", "accumulation", "microbatch-scale"])
def test_a_spoiled_run_is_caught(fault):
    report = run("gpt2_tied", "dp=2,micro=2", fault=fault)
    assert not report.ok
    assert report.comparison.worst_names()


def test_unequal_counts_are_what_catches_a_wrong_scale():
    # LOS-01: a mean of means is wrong where rows are of unequal length, and only there.
    report = run("gpt2_tied", "dp=2", fault="token-scale", num_steps=1)
    assert report.comparison.loss_error > 1e-3


@pytest.mark.parametrize(
    ("factory", "said"),
    [("build_raising", "this rank fails"), ("build_dead", "7"), ("build_hanging", "2 s")],
)
def test_ranks_that_fail_die_or_hang_end_in_one_line(factory, said, monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "en")
    request = Request(
        source=Source(model=f"{ZOO / 'mixer'}.py:build"),
        layout="dp=2",
        ranks=2,
        factory=f"by_hand:{factory}",
        timeout_s=2 if factory == "build_hanging" else 60,
    )
    with pytest.raises(RankFailed) as failed:
        verify(request, memory=MEMORY)
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)
    assert failed.value.exit_code == 1


def test_a_fault_that_can_change_nothing_is_refused_and_an_unknown_one_lists_what_there_is():
    with pytest.raises(VerifyError) as refused:
        run("mixer", "dp=2", fault="stage-mask")
    assert "pp=2" in str(refused.value)
    with pytest.raises(VerifyError) as refused:
        run("mixer", "dp=2", fault="gremlin")
    assert "token-scale" in str(refused.value)


def test_what_cant_be_asked_is_refused_before_a_rank_starts():
    with pytest.raises(LayoutError):
        run("mixer", "tp=3", ranks=2)
    with pytest.raises(VerifyError):
        run("mixer", "dp=2,micro=4", seqs=4)
    with pytest.raises(ModelError):
        run("no_such_model", "dp=2")


_INSIDE = [
    ("dp-bucket", "gpt2_tied", "dp=2", None),
    ("shard-step", "padded", "zero1,dp=2", None),
    ("replicated-gradient", "padded", "tp=2", None),
    ("qkv-rows", "gpt2_tied", "tp=2", None),
    ("bias-per-rank", "gpt2_tied", "tp=2", "bias"),
    ("norm-gradient", "qwen3", "tp=2", "_norm"),
    ("tied-allreduce", "gpt2_tied", "pp=2", "wte.weight"),
    ("clip-per-stage", "gpt2_tied", "pp=2", None),
    ("stage-mask", "padded", "pp=2", None),
    ("accumulation", "padded", "pp=2", None),
    ("microbatch-scale", "padded", "pp=2", None),
    ("cp-offset", "gpt2_tied", "cp=2", None),
    ("dp-bucket", "gpt2_tied", "cp=2", None),
    ("expert-token", "mixtral", "ep=2,dp=2", None),
    ("recompute-rng", "dropout", "dp=2,recompute=full", None),
    ("recompute-rng", "dropout", "pp=2,recompute=selective", None),
]
"""Faults, where they bite, and what the worst name must tell."""


@pytest.mark.parametrize(
    ("fault", "model", "layout", "guilty"), _INSIDE, ids=[f"{each[0]}-{each[2]}" for each in _INSIDE]
)
def test_a_fault_inside_a_layout_is_caught(fault, model, layout, guilty):
    report = run(model, layout, factory=FACTORY, dtype="fp64", fault=fault)
    assert not report.ok
    if guilty:
        assert guilty in report.comparison.worst_names()[0], list(report.lines())


def test_a_fault_that_finds_nothing_to_break_in_the_model_says_so():
    with pytest.raises(VerifyError) as refused:
        run("llama_by_hand", "tp=2", factory=FACTORY, fault="bias-per-rank")
    assert "bias-per-rank" in str(refused.value)


def test_sequence_parallelism_of_a_model_without_sequences_is_refused_in_its_own_words(monkeypatch):
    monkeypatch.setenv("TRIREME_LANG", "en")
    with pytest.raises(LayoutError) as refused:
        run("contrastive", "tp=2,sp", factory=FACTORY)
    assert "sp shares out" in str(refused.value)
