"""The search: best layouts, what was left out and why, odd machines, bad input."""

from dataclasses import replace

import pytest

from trireme.cluster import parse_cluster
from trireme.errors import ConfigError, Infeasible, LayoutError
from trireme.graph import DecoderNumbers, find_model, read_numbers
from trireme.plan import (
    Problem,
    Workload,
    check_layout,
    estimate_goodput,
    estimate_peak,
    estimate_step,
    fewest_gpus,
    find_framework,
    format_plan,
    make_plan,
    parse_plan,
    parse_wish,
    ranks_of,
    search,
    why_not,
)
from trireme.plan.bound import Bounds
from trireme.plan.candidate import Left, frames, shardings, variants
from trireme.plan.layer_choice import fit_layers
from trireme.plan.search import fitted, with_cuts

_MEGATRON = find_framework("megatron-lm")


def _decoder(**numbers):
    given = {"vocab_size": 32_000, "num_layers": 24, "d_model": 2048, "num_heads": 16, "d_ffn": 5632, "gated": True}
    return read_numbers(DecoderNumbers(**{**given, **numbers}))


def _problem(cluster="h100:8", **settings):
    given = {"model": _decoder(), "global_batch_seqs": 64, "seq_len": 2048}
    return Problem(**{**given, **settings}, cluster=parse_cluster(cluster))


def test_the_best_layouts_are_legal_fit_and_come_in_order():
    problem = _problem()
    result = search(problem, top=4)
    assert len(result.plans) == 4
    for found in result.plans:
        assert not check_layout(found.workload.layout, problem.facts())
        assert found.memory.fits
        assert found.workload.layout.world_size == 8
    scores = [found.score_s for found in result.plans]
    assert scores == sorted(scores)


def test_no_layout_that_was_not_estimated_is_better_than_the_best():
    # A space small enough to estimate all of it.
    problem = _problem("a100-40gb:4", model=_decoder(num_layers=12), global_batch_seqs=16)
    best = search(problem, top=1).best
    bounds = Bounds(problem)
    scores = []
    for frame in frames(problem, left=Left()):
        for sharding in shardings(problem, frame):
            for shape in variants(problem, sharding):
                plain = with_cuts(problem, shape.layout(), bounds=bounds)
                workload, memory = fitted(problem, plain, bounds=bounds)
                if memory.fits:
                    time = estimate_step(workload)
                    assert bounds.of(shape, state=bounds.state_bytes(sharding)).step_s <= time.step_s * (1 + 1e-6)
                    scores.append(replace(best, workload=workload, time=time, memory=memory).score_s)
    assert min(scores) == pytest.approx(best.score_s)


def test_every_class_that_was_left_out_keeps_its_reason_and_an_example():
    result = search(_problem(model=find_model("llama-3-8b"), seq_len=8192), top=2)
    rules = {rejection.rule: rejection for rejection in result.rejected}
    assert {"state_too_large", "bound_slower"} <= set(rules)
    assert "GiB a rank" in rules["state_too_large"].reason
    assert "%" in rules["bound_slower"].reason
    counted = result.counted
    assert counted.estimated < counted.layouts / 2


def test_what_is_fixed_is_kept():
    wish = parse_wish("tp=2,pp=2,zero1,schedule=1f1b").said
    layout = search(_problem(fix={**wish, "microbatch_seqs": 2}), top=1).best.workload.layout
    assert (layout.tp, layout.pp, layout.zero, layout.schedule) == (2, 2, 1, "1f1b")
    assert 64 // layout.dp // layout.num_microbatches == 2


def test_pln_11_a_degree_that_does_not_divide_the_batch_is_refused_with_the_equation():
    with pytest.raises(LayoutError, match=r"data-parallel degree of 23.*global batch of 32.*23 / 46"):
        search(_problem("h100:8x184", global_batch_seqs=32, fix=parse_wish("tp=8,pp=8,cp=1").said))


def test_degrees_that_do_not_divide_the_ranks_are_refused_with_the_nearest():
    with pytest.raises(LayoutError, match=r"tp=3 = 3 doesn't divide 8 ranks; nearest: tp=2"):
        search(_problem(fix={"tp": 3}))


def test_pln_06_head_counts_bound_the_degrees_and_seven_gpus_get_a_plan_or_a_reason():
    model = _decoder(num_heads=28, num_kv_heads=4, d_model=3584, num_layers=28)
    for ranks in (6, 7, 8):
        problem = _problem(f"h100:{ranks}", model=model, global_batch_seqs=ranks * 8)
        result = search(problem, top=3)
        for found in result.plans:
            assert not check_layout(found.workload.layout, problem.facts())
        if ranks == 7:
            assert "kv_heads" in {rejection.rule for rejection in result.rejected}
        if ranks == 6:
            assert "heads" in {rejection.rule for rejection in result.rejected}


@pytest.mark.parametrize("cluster", ["h100:1", "4090:6", "h100:12", "h100:8x3", "cpu:2"])
def test_odd_machines_get_a_plan(cluster):
    small = _decoder(num_layers=6, d_model=768, num_heads=12, d_ffn=2048, vocab_size=32_003)
    problem = _problem(cluster, model=small, global_batch_seqs=24, seq_len=256)
    best = search(problem, top=1).best
    assert best.workload.layout.world_size == problem.cluster.num_ranks


def test_pln_02_tensor_parallel_stays_inside_a_node():
    model = _decoder(num_layers=60, d_model=6144, num_heads=48, d_ffn=16_384)  # about 30 B
    wide = replace(_problem("a100-80gb:8x2,ib=edr100", model=model, global_batch_seqs=256), framework=_MEGATRON)
    across = search(replace(wide, fix=parse_wish("tp=16,pp=1,cp=1").said), top=1).best
    inside = search(replace(wide, fix=parse_wish("tp=8,pp=2,cp=1").said), top=1).best
    assert across.time.step_s > 1.5 * inside.time.step_s
    layout = search(wide, top=1).best.workload.layout
    assert layout.tp <= 8
    assert max(ranks_of(layout, "tp")) < 8


def test_nothing_fits_names_the_nearest_and_what_bursts():
    with pytest.raises(Infeasible, match="offered"):
        search(_problem("4090:1", model=find_model("llama-3-70b")))
    empty = _problem("4090:1")
    none = replace(empty.cluster, accelerator=replace(empty.cluster.accelerator, memory_bytes=0))
    with pytest.raises(Infeasible, match="0 B"):
        search(replace(empty, cluster=none))


def test_an_unknown_accelerator_names_the_nearest():
    with pytest.raises(ConfigError, match="h100"):
        parse_cluster("h101:8")


def test_layers_recompute_only_as_far_as_memory_asks():
    problem = _problem("a100-40gb:8", model=_decoder(num_layers=32, d_model=4096, num_heads=32), seq_len=8192)
    problem = replace(problem, fix=parse_wish("tp=4,pp=1,cp=1").said | {"microbatch_seqs": 8}, framework=_MEGATRON)
    found = search(problem, top=1).best
    kinds = [found.workload.recompute_of(layer) for layer in range(32)]
    assert 0 < kinds.count("full") < 32
    assert found.memory.fits
    less = list(found.workload.recompute)
    less[kinds.index("full")] = "none"
    assert not estimate_peak(replace(found.workload, recompute=tuple(less))).fits


def test_offload_takes_layers_to_the_host_where_it_may():
    problem = _problem("a100-40gb:8", model=_decoder(num_layers=32, d_model=4096, num_heads=32), seq_len=8192)
    layout = search(replace(problem, fix=parse_wish("tp=8,pp=1,cp=1").said), top=1).best.workload.layout
    plain = problem.workload(replace(layout, recompute="none", microbatches_per_step=8))
    chosen, memory = fit_layers(plain, rates=Bounds(problem).rates, may_offload=True)
    assert memory.fits
    assert isinstance(chosen, Workload)


def test_why_not_names_the_rule_the_term_or_the_time():
    problem = _problem(model=find_model("llama-3-8b"), global_batch_seqs=64, seq_len=4096)
    best = search(problem, top=1).best
    slower = why_not(problem, parse_wish("tp=8").said, best=best)
    assert slower.verdict == "slower"
    assert "slower" in slower.reason
    assert why_not(problem, parse_wish("tp=3").said, best=best).verdict == "illegal"
    large = why_not(problem, parse_wish("dp=8,zero0,tp=1,pp=1,cp=1,recompute=none").said, best=best)
    assert large.verdict in ("too_large", "illegal")
    assert "GiB" in large.reason
    assert why_not(problem, {}, best=best).verdict == "best"


def test_fewest_gpus_is_the_smallest_cluster_on_which_something_fits():
    problem = _problem("a100-40gb:8x4", model=find_model("llama-3-8b"), framework=_MEGATRON)
    fewest = fewest_gpus(problem)
    ranks = fewest.cluster.num_ranks
    assert 2 <= ranks <= 8
    assert "GiB" in fewest.smaller
    assert fewest.result.best.memory.fits


def test_a_plan_is_written_and_read_back():
    found = search(_problem(fix=parse_wish("pp=2").said), top=1).best
    plan = make_plan(found, version="1.2.3")
    assert parse_plan(format_plan(plan)) == plan
    assert len(plan.cuts) == found.workload.layout.num_stages - 1
    assert plan.predicted("step_s").value == found.time.step_s
    assert plan.predicted("device_bytes.pp_1") is not None


def test_experts_are_spread_where_that_is_allowed():
    model = find_model("mixtral-8x7b")
    problem = _problem("h100:8x2", model=model, seq_len=4096, global_batch_seqs=32, framework=_MEGATRON)
    fixed = parse_wish("pp=1,cp=1").said
    degrees = {found.workload.layout.ep for found in search(replace(problem, fix=fixed), top=5).plans}
    assert max(degrees) > 1
    assert search(replace(problem, fix={**fixed, "ep": 8}), top=1).best.workload.layout.ep == 8


def test_the_articles_large_model_is_cut_into_64_parts_replicated_8_times():
    model = _decoder(vocab_size=50_304, num_layers=96, d_model=12_288, num_heads=96, d_ffn=49_152, gated=False)
    fix = parse_wish("dp=8,mp_degree=4,pp=16,schedule=1f1b,micro=16").said
    found = search(
        _problem("a100-80gb:8x64", model=model, global_batch_seqs=128, framework=_MEGATRON, fix=fix), top=1
    ).best
    layout = found.workload.layout
    assert layout.tp * layout.pp == 64
    assert layout.world_size // 64 == 8
    # 16 / (16 + 16 - 1) of the time is work; head and embedding make it a little less.
    assert 1 - found.time.bubble_ratio == pytest.approx(16 / 31, abs=0.05)


def test_goodput_follows_young_and_daly():
    good = estimate_goodput(num_nodes=100, node_mtbf_s=100 * 36_000.0, checkpoint_s=60.0, restart_s=300.0)
    assert good.mtbf_s == 36_000
    assert good.interval_s == pytest.approx((2 * 60 * 36_000) ** 0.5, rel=0.05)
    around = [
        1 - (60 / (tau + 60) + ((tau + 60) / 2 + 300) / 36_000) for tau in (good.interval_s / 2, good.interval_s * 2)
    ]
    assert good.ratio > max(around)
    with pytest.raises(LayoutError, match="no time for checkpoints"):
        estimate_goodput(num_nodes=10_000, node_mtbf_s=36_000.0, checkpoint_s=60.0)
