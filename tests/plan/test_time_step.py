"""The time of a step follows from what it does and from who waits for whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trireme.cluster import parse_cluster
from trireme.graph import find_model
from trireme.plan import Layout, StageCost, Workload, estimate_step, pipeline_time
from trireme.plan.saved import section_saved
from trireme.plan.time_data import exposed_s
from trireme.plan.time_layer import LayerSeconds
from trireme.plan.time_offload import HOST_LINK_BYTES_PER_S, offload_stall

SUM_TOLERANCE = 1e-9  # sums of the same floats in another order
STEADY_TOLERANCE = 2e-3  # interleaved stages of unequal length settle slowly; the others are exact

FORMULA_TOLERANCE = 0.06  # it knows the slowest rank, not who waits for whom
UNEVEN_TOLERANCE = 0.01  # groups of micro-batches that don't come out even are of two sizes


def _workload(layout: Layout, *, cluster: str = "h100:8x2", model: str = "llama-3-8b", **more: object) -> Workload:
    return Workload(
        model=find_model(model),
        cluster=parse_cluster(cluster),
        layout=layout,
        global_batch_seqs=64,
        seq_len=4096,
        **more,  # type: ignore[arg-type]
    )


def test_a_step_takes_no_less_than_its_flops_at_the_peak() -> None:
    step = estimate_step(_workload(Layout(dp_shard=16, zero=3, microbatches_per_step=4)))
    assert 0 < step.mfu < 1
    assert step.low_s < step.step_s < step.high_s
    assert step.tokens_per_s == pytest.approx(64 * 4096 / step.step_s)


def test_the_parts_of_a_step_add_up_to_it() -> None:
    for layout in (
        Layout(dp_shard=16, zero=1, microbatches_per_step=4),
        Layout(pp=4, tp=2, dp_shard=2, zero=1, sp=True, microbatches_per_step=8, recompute="full"),
        Layout(pp=2, vp=2, schedule="interleaved", dp_replicate=8, microbatches_per_step=4),
    ):
        step = estimate_step(_workload(layout))
        assert sum(step.parts.values()) == pytest.approx(step.step_s, rel=SUM_TOLERANCE), layout


def test_recomputation_costs_time_and_raises_hardware_use_only() -> None:
    none = estimate_step(_workload(Layout(dp_shard=16, zero=3, microbatches_per_step=4)))
    full = estimate_step(_workload(Layout(dp_shard=16, zero=3, microbatches_per_step=4, recompute="full")))
    assert 1.15 < full.step_s / none.step_s < 1.4
    assert none.hfu == pytest.approx(none.mfu)
    assert full.hfu == pytest.approx(full.mfu * 4 / 3, rel=0.05)  # the head isn't repeated


def test_buckets_hide_behind_compute_but_the_last() -> None:
    """PLN-12: 10 ms of compute and six buckets of 1 ms take 11 ms, between max(C, D) and C + D."""
    assert 10e-3 + exposed_s(6e-3, window_s=10e-3, buckets=6) == pytest.approx(11e-3)
    assert 10e-3 + exposed_s(30e-3, window_s=10e-3, buckets=6) == pytest.approx(10e-3 / 6 + 30e-3)
    assert exposed_s(6e-3, window_s=0.0, buckets=6) == pytest.approx(6e-3)


def test_without_overlap_the_same_traffic_shows_in_full() -> None:
    """PLN-12, the other bound."""
    layout = Layout(dp_replicate=16, microbatches_per_step=4)
    hidden = _workload(layout)
    shown = replace(hidden, framework=replace(hidden.framework, overlaps_data=False))
    assert estimate_step(shown).step_s > estimate_step(hidden).step_s


def test_tensor_parallel_across_nodes_is_clearly_slower() -> None:
    """PLN-02: two nodes, 300 GB/s inside and 12.5 GB/s between them."""
    cluster = "a100-80gb:8x2,ib=edr100,cards=8"
    wide = _workload(Layout(tp=16, microbatches_per_step=16), cluster=cluster, model="llama-1-30b")
    deep = _workload(Layout(tp=8, pp=2, microbatches_per_step=16), cluster=cluster, model="llama-1-30b")
    assert estimate_step(wide).step_s > 1.3 * estimate_step(deep).step_s


def test_equal_stages_wait_as_the_formula_says() -> None:
    """Bubble 1 - m / (m + p - 1): 16 stages and 4 micro-batches work 21 % of the time, not 81 %."""
    costs = [StageCost(forward_s=1.0, input_grad_s=1.0, weight_grad_s=1.0)] * 16
    for name in ("1f1b", "gpipe"):
        time = pipeline_time(name, pp=16, vp=1, num_microbatches=4, costs=costs)  # type: ignore[arg-type]
        assert time.bubble_ratio == pytest.approx(1 - 4 / 19)


@pytest.mark.parametrize(
    ("name", "pp", "vp", "count"),
    [("1f1b", 4, 1, 37), ("interleaved", 4, 3, 48), ("zb", 4, 1, 40), ("zbv", 4, 2, 41), ("gpipe", 3, 1, 40)],
)
def test_a_schedule_continued_takes_as_long_as_one_played(name: str, pp: int, vp: int, count: int) -> None:
    costs = [StageCost(forward_s=1.0 + stage % 3, input_grad_s=1.5, weight_grad_s=1.0) for stage in range(pp * vp)]
    given = {"pp": pp, "vp": vp, "num_microbatches": count, "costs": costs, "sends_s": 0.1}
    short = pipeline_time(name, **given)  # type: ignore[arg-type]
    whole = pipeline_time(name, **given, effort="whole")  # type: ignore[arg-type]
    assert short.makespan_s == pytest.approx(whole.makespan_s, rel=STEADY_TOLERANCE)


@pytest.mark.parametrize(("name", "vp"), [("1f1b", 1), ("interleaved", 2), ("zb", 1), ("zbv", 2)])
def test_the_formula_of_a_schedule_is_near_what_playing_it_gives(name: str, vp: int) -> None:
    costs = [
        StageCost(forward_s=1.0 + (stage == 3) / 3, input_grad_s=1.0, weight_grad_s=1.0) for stage in range(4 * vp)
    ]
    given = {"pp": 4, "vp": vp, "num_microbatches": 16, "costs": costs, "sends_s": 0.05}
    played = pipeline_time(name, **given)  # type: ignore[arg-type]
    formula = pipeline_time(name, **given, effort="formula")  # type: ignore[arg-type]
    assert formula.makespan_s == pytest.approx(played.makespan_s, rel=FORMULA_TOLERANCE)


def test_an_uneven_last_group_of_an_interleaved_schedule_costs_a_hundredth_at_most() -> None:
    costs = [StageCost(forward_s=1.0 + stage % 3, input_grad_s=1.5, weight_grad_s=1.0) for stage in range(12)]
    short = pipeline_time("interleaved", pp=4, vp=3, num_microbatches=50, costs=costs)
    whole = pipeline_time("interleaved", pp=4, vp=3, num_microbatches=50, costs=costs, effort="whole")
    assert short.makespan_s == pytest.approx(whole.makespan_s, rel=UNEVEN_TOLERANCE)


def test_frozen_weights_take_less_than_all_of_them() -> None:
    layout = Layout(dp_replicate=16, microbatches_per_step=4)
    full, frozen = estimate_step(_workload(layout)), estimate_step(_workload(layout, adapters_only=True))
    assert 0.6 < frozen.step_s / full.step_s < 0.8


def test_offload_shows_only_what_no_compute_hides_and_costs_what_the_host_link_says() -> None:
    layer = LayerSeconds(forward_s=1.0, input_grad_s=1.0, weight_grad_s=1.0, repeated_s=0.0)
    assert sum(offload_stall(0.9 * HOST_LINK_BYTES_PER_S, layer)) == 0
    assert offload_stall(1.5 * HOST_LINK_BYTES_PER_S, layer).forward_s == pytest.approx(0.5)
    assert offload_stall(2.5 * HOST_LINK_BYTES_PER_S, layer).backward_s == pytest.approx(0.5)
    model, cluster = find_model("llama-3-8b"), parse_cluster("h100:8")
    plain = Workload(
        model=model, cluster=cluster, layout=Layout(dp_shard=8, zero=3), global_batch_seqs=16, seq_len=8192
    )
    moved = replace(plain, offload=(True,) * model.num_layers)
    before, after = estimate_step(plain), estimate_step(moved)
    assert after.step_s > before.step_s
    assert after.parts["offload"] > 0 == before.parts["offload"]
    assert sum(after.parts.values()) == pytest.approx(after.step_s)


def test_selective_recomputation_repeats_what_lies_between_products_and_keeps_their_results() -> None:
    model, cluster = find_model("llama-3-8b"), parse_cluster("h100:8")
    layout = Layout(dp_shard=8, zero=3)
    steps, kept = {}, {}
    for kind in ("none", "selective", "full"):
        work = Workload(
            model=model,
            cluster=cluster,
            layout=replace(layout, recompute=kind),  # type: ignore[arg-type]
            global_batch_seqs=16,
            seq_len=8192,
        )
        steps[kind] = estimate_step(work)
        section = next(each for each in model.sections() if each.group == "layers")
        kept[kind] = section_saved(work, section, kind).kept  # type: ignore[arg-type]
    assert steps["none"].step_s < steps["selective"].step_s < steps["full"].step_s
    D, F, G = 4096, 14336, 1024
    # Residual stream in fp32; the results of q, k, v, o, gate, up and down in 16 bits.
    assert kept["selective"] == 2 * 8192 * (4 * D + 2 * (3 * D + 2 * G + 2 * F))
