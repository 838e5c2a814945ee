"""Rows of published runs are read as their sources write them, and the shipped rates keep what they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from trireme.plan import check_runs, score_checks
from trireme.plan.truth_cluster import cluster_of
from trireme.plan.truth_fit import fitted, holds
from trireme.plan.truth_layout import framework_of, kernels_of, recompute_of
from trireme.plan.truth_row import Row, Unreadable, measured_bytes, read_rows
from trireme.plan.truth_workload import run_of

RUNS = Path(__file__).parents[2] / "benchmarks" / "data" / "published_runs.csv"
EVERY = 5  # a fifth of the rows keeps the suite quick; benchmarks/planner_accuracy.md has all of them
MEDIAN_LIMIT, P90_LIMIT = 0.12, 0.28  # a fifth of the rows scatters around the 0.10 and 0.25 of all
COVERAGE = (0.70, 0.95)


def _rows() -> list[Row]:
    return read_rows(RUNS.read_text(encoding="utf-8"), path=str(RUNS))


def _row(**cells: str) -> Row:
    filled = {
        "id": "x",
        "layers": "32",
        "hidden": "4096",
        "heads": "32",
        "vocab": "32000",
        "act": "swiglu",
        "seq_len": "4096",
        "gpu": "A100-80GB-SXM",
        "gpu_count": "64",
        "tp": "2",
        "pp": "2",
        "dp": "16",
        "gbs": "128",
        "mbs": "1",
        "source_date": "2024",
    }
    return Row(filled | cells, 2)


def test_a_part_of_the_published_runs_is_predicted_within_the_goals() -> None:
    header, *lines = RUNS.read_text(encoding="utf-8").splitlines()
    score = score_checks(check_runs("\n".join([header, *lines[::EVERY]]), path="part"))
    assert score.time is not None and score.coverage is not None  # noqa: PT018 - one thing: there are runs
    assert score.time.median < MEDIAN_LIMIT
    assert score.time.p90 < P90_LIMIT
    assert COVERAGE[0] < score.coverage < COVERAGE[1]


@pytest.mark.parametrize(
    ("gpu", "memory_gib"),
    [
        ("A100-80GB-SXM", 80),
        ("A100-40GB-SXM", 40),
        ("NVIDIA Ampere (A100-class) 80GB", 80),
        ("H100-96GB-SXM (HBM2e 2.4TB/s, 500W)", 96),
        ("V100-16GB-SXM2", 16),
        ("GB200-NVL72", 186),
        ("B200", 180),
    ],
)
def test_accelerators_are_known_by_what_sources_call_them(gpu: str, memory_gib: int) -> None:
    assert cluster_of(gpu, "", 64).accelerator.memory_bytes == memory_gib * 2**30


def test_an_accelerator_nobody_knows_is_named_with_the_nearest() -> None:
    with pytest.raises(Unreadable, match=r"TPU v4.*near"):
        cluster_of("TPU v4", "", 64)


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("NVLink3; 8x200Gb/s HDR IB", 25e9),
        ("NVLink3; 4x100Gb/s RoCE per node", 6.25e9),
        ("NVLink4; 400Gb/s IB per GPU", 50e9),
        ("NVLink3; 1600Gb/s RoCE per node", 25e9),
        ("NVLink4; 8x50GB/s IB", 50e9),
        ("NVLink2; p3.16xlarge 25Gb/s Ethernet", 25e9 / 64),
    ],
)
def test_networks_are_read_per_node_or_per_accelerator(text: str, bytes_per_s: float) -> None:
    assert cluster_of("A100-80GB-SXM", text, 64).network_bytes_per_s == pytest.approx(bytes_per_s)


def test_a_missing_degree_follows_from_the_others() -> None:
    run = run_of(_row(pp="", tp="1", dp="64", zero="FSDP2 (ZeRO-3)"))
    assert (run.workload.layout.pp, run.workload.layout.zero) == (1, 3)
    with pytest.raises(Unreadable, match="pp is not given"):
        run_of(_row(pp="", tp="2", dp="16"))


def test_no_batch_is_a_reason_and_not_a_guess() -> None:
    with pytest.raises(Unreadable, match="gbs is not given"):
        run_of(_row(gbs="", mbs=""))


def test_old_megatron_kept_score_matrices_and_new_one_does_not() -> None:
    for year, kernels in (("2021", "unflashed"), ("2025", "fused")):
        row = _row(framework="Megatron-LM", source_date=year)
        assert kernels_of(row, framework_of(row)) == kernels


def test_parts_of_recomputation_that_hold_the_experts_are_nearly_all_of_it() -> None:
    assert recompute_of(_row(recompute="selective (mla_up_proj, mlp, moe)")) == "full"
    assert recompute_of(_row(recompute="selective (moe_act)")) == "selective"
    assert recompute_of(_row(recompute="none")) == "none"


def test_where_nobody_says_what_is_recomputed_as_much_is_as_fits() -> None:
    run = run_of(_row(gpu="A100-40GB-SXM", seq_len="16384", mbs="2", framework="NeMo"))
    assert set(run.held.recompute) >= {"full"}
    assert "full" not in run.workload.recompute
    assert any("recomputed" in text for text in run.assumed)


def test_a_workload_that_fits_is_left_alone() -> None:
    workload = run_of(_row(recompute="none", framework="NeMo")).workload
    same, share = fitted(workload)
    assert same is workload
    assert share == 0.0


def test_printed_gigabytes_are_binary_unless_said_otherwise() -> None:
    assert measured_bytes(_row(peak_mem="2", mem_unit="GB")) == 2 * 2**30
    assert measured_bytes(_row(peak_mem="2", mem_unit="GB (1e9)")) == 2e9
    assert measured_bytes(_row(peak_mem="69-70", mem_unit="GB")) is None


def test_doubtful_rows_are_flagged_and_not_scored() -> None:
    score = score_checks(
        check_runs(RUNS.read_text(encoding="utf-8").split("\n", 1)[0] + "\n" + _line("1001"), path="x")
    )
    assert (score.doubtful, score.time) == (1, None)


def _line(number: str) -> str:
    lines = RUNS.read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{number},"))


def test_a_judgement_on_memory_takes_the_context_in() -> None:
    from trireme.plan import estimate_peak

    memory = estimate_peak(run_of(_row(recompute="none", framework="NeMo")).workload)
    assert holds(memory) == (memory.worst.allocated_bytes + memory.worst.context_bytes < memory.capacity_bytes)
