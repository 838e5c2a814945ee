"""Memory of a rank along the schedule: state by rule, activations by count, the peak named with its event."""

from dataclasses import replace

import pytest

from trireme.cluster import parse_cluster
from trireme.errors import Infeasible
from trireme.graph import DecoderNumbers, find_model, read_numbers
from trireme.plan import (
    Framework,
    Layout,
    Workload,
    build_schedule,
    count_in_flight,
    estimate_peak,
    parse_layout,
    rank_params,
    require_fit,
    state_bytes,
    state_parts,
)

_SEVEN_BILLION = 7.0e9
_COPY = Framework(name="copies 16-bit gradients", weights="copy", float32_gradients=False)


def _workload(text, *, model="llama-3-8b", **settings):
    layout = parse_layout(text).layout
    ranks = layout.world_size
    cluster = parse_cluster(f"h100:{min(8, ranks)}x{max(1, ranks // 8)}")
    given = {"global_batch_seqs": 64, "seq_len": 1024, "cluster": cluster}
    return Workload(model=find_model(model), layout=layout, **{**given, **settings})


def _state_per_param(zero, **settings):
    """Bytes of state over parameters, on one of eight ranks."""
    workload = _workload("dp=8" + (f",zero{zero}" if zero else ""), **settings)
    params = rank_params(workload, 0)
    return state_parts(workload, params).total_bytes / sum(param.numel for param in params)


def test_mem_03_bytes_per_parameter_follow_from_precision_optimizer_and_zero_stage():
    expected = {0: 16.0, 1: 2 + 2 + 12 / 8, 2: 2 + 14 / 8, 3: 16 / 8}
    for zero, size in expected.items():
        assert _state_per_param(zero, framework=_COPY) == pytest.approx(size, rel=1e-6)
    assert [round(expected[zero] * _SEVEN_BILLION / 1e9, 2) for zero in range(4)] == [112.0, 38.5, 26.25, 14.0]
    assert _state_per_param(0, precision="fp32") == 16
    assert _state_per_param(0, precision="fp32", optimizer="sgd") == 8


def test_mem_04_master_weights_zero_and_gradient_format_each_change_the_total():
    totals = {}
    for master in (False, True):
        for zero in (0, 1):
            for wide in (False, True):
                habits = Framework(name="any", weights="copy" if master else "none", float32_gradients=wide)
                totals[master, zero, wide] = _state_per_param(zero, framework=habits)
    assert len(set(totals.values())) == 8
    for zero, shards in ((0, 1), (1, 8)):
        for wide in (False, True):
            assert totals[True, zero, wide] - totals[False, zero, wide] == pytest.approx(4 / shards, rel=1e-6)
        assert totals[True, zero, True] - totals[True, zero, False] == pytest.approx(2, rel=1e-6)


def test_adafactor_keeps_rows_and_columns():
    small, large = (_state_per_param(0, optimizer=name, precision="fp32") for name in ("adafactor", "adamw"))
    assert 8 < small < 8.01
    assert large == 16


@pytest.mark.parametrize("text", ["pp=4,micro=8", "pp=2,vp=2,schedule=interleaved,micro=4", "pp=4,schedule=zb,micro=8"])
def test_pln_08_activations_in_flight_are_those_that_the_schedule_holds(text):
    # Four stages of eight layers each; sequences so long that activations decide where the peak is.
    workload = _workload(text, global_batch_seqs=8 if "8" in text else 4, seq_len=8192)
    layout = workload.layout
    schedule = build_schedule(layout.schedule, pp=layout.pp, vp=layout.vp, num_microbatches=layout.num_microbatches)
    last = estimate_peak(_workload("pp=4,micro=8", global_batch_seqs=8, seq_len=8192)).ranks[3]
    for memory, held in zip(estimate_peak(workload).ranks, count_in_flight(schedule), strict=True):
        # One micro-batch is in flight on the last rank of 1f1b; embedding indices and the last norm are the rest.
        assert memory.parts["activations"] == pytest.approx(last.parts["activations"] * held.count, rel=0.03)


def test_the_first_stage_of_1f1b_holds_most_and_the_last_peaks_at_its_loss():
    timeline = estimate_peak(_workload("pp=4,micro=16", global_batch_seqs=16))
    held = [rank.parts["activations"] for rank in timeline.ranks]
    assert held == sorted(held, reverse=True)
    assert timeline.ranks[3].peak.moment == "loss"


def test_recompute_keeps_less_and_has_one_layer_whole_at_a_time():
    none, selective, full = (
        estimate_peak(_workload(f"dp=8,zero1,recompute={kind},micro=1", kernels="eager"))
        for kind in ("none", "selective", "full")
    )
    assert none.worst.parts["activations"] > selective.worst.parts["activations"] > full.worst.parts["activations"]
    again = max(event.allocated_bytes for event in full.ranks[0].events if event.moment == "backward")
    static = sum(full.worst.parts[name] for name in ("parameters", "optimizer", "weight_casts"))
    assert again - static > none.worst.parts["activations"] / 32  # one layer as it would be without


def test_layers_may_differ_in_recompute_and_offload():
    none, full = (
        estimate_peak(_workload(f"dp=8,zero1,recompute={kind},micro=1", seq_len=4096)) for kind in ("none", "full")
    )
    half = estimate_peak(_workload("dp=8,zero1,micro=1", seq_len=4096, recompute=("full",) * 16 + ("none",) * 16))
    average = (none.worst.parts["activations"] + full.worst.parts["activations"]) / 2
    assert half.worst.parts["activations"] == pytest.approx(average, rel=0.01)
    away = estimate_peak(_workload("dp=8,zero1,micro=1", seq_len=4096, offload=(True,) * 32))
    assert away.worst.host_bytes > 0
    assert away.worst.parts["activations"] < none.worst.parts["activations"] / 10


def test_tensor_and_sequence_parallel_share_out_activations():
    one, cut, sequence = (
        estimate_peak(
            _workload(text, global_batch_seqs=8, seq_len=8192, framework=Framework(name="m", keeps_sequence_cut=True))
        )
        for text in ("tp=1", "tp=8", "tp=8,sp")
    )
    whole = one.worst.parts["activations"]
    assert sequence.worst.parts["activations"] == pytest.approx(whole / 8, rel=0.03)
    assert whole / 8 < cut.worst.parts["activations"] < whole / 2


def test_context_parallel_shares_out_the_sequence():
    one, many = (estimate_peak(_workload(f"cp={cp}", global_batch_seqs=8, seq_len=8192)) for cp in (1, 8))
    assert many.worst.parts["activations"] < one.worst.parts["activations"] / 4


def test_what_the_device_shows_is_more_than_what_the_allocator_counts():
    worst = estimate_peak(_workload("dp=8")).worst
    assert worst.device_bytes > worst.allocated_bytes == worst.peak.allocated_bytes == sum(worst.parts.values())


def test_the_timeline_has_every_action_and_ends_with_the_update():
    events = estimate_peak(_workload("pp=4,micro=8")).ranks[0].events
    assert len(events) == 8 + 2 * 8 + 1
    assert events[-1].moment == "update"


def test_what_bursts_is_named_with_the_amount_and_what_would_fit():
    with pytest.raises(Infeasible) as caught:
        require_fit(_workload("dp=8,zero3,micro=1", model="llama-3-8b", seq_len=8192, global_batch_seqs=64))
    message = str(caught.value)
    assert "80.00 GiB offered" in message
    assert "activations" in message
    assert "fits" in message


def test_a_model_that_no_setting_makes_fit_says_that_more_ranks_are_needed():
    with pytest.raises(Infeasible, match="more ranks are needed"):
        require_fit(_workload("dp=1", model="llama-3-405b"))


def test_logits_are_cut_by_tensor_parallelism_and_larger_for_a_larger_vocabulary():
    def logits(vocab_size, text):
        numbers = DecoderNumbers(vocab_size=vocab_size, num_layers=2, d_model=256, num_heads=4)
        workload = replace(
            _workload(text, global_batch_seqs=8, seq_len=4096), model=read_numbers(numbers), recompute=()
        )
        return estimate_peak(workload).ranks[0].parts["logits"]

    assert logits(64_000, "micro=1") == pytest.approx(2 * logits(32_000, "micro=1"), rel=0.01)
    assert logits(64_000, "tp=4,micro=1") == pytest.approx(logits(64_000, "micro=1") / 4, rel=0.05)


def test_state_bytes_name_their_parts():
    each = state_bytes(_workload("dp=1", precision="bf16"))
    assert (each.parameter, each.gradient, each.optimizer, each.cast) == (4, 4, 8, 2)
    assert Layout().world_size == 1


def test_casts_are_made_once_a_step_but_of_gathered_weights_for_every_micro_batch():
    def casts(text, **settings):
        workload = _workload(text, global_batch_seqs=8, seq_len=8192, **settings)
        return estimate_peak(workload).ranks[0].parts["weight_casts"], rank_params(workload, 0)

    plain, params = casts("pp=4,micro=8")
    assert plain == 2 * sum(param.numel for param in params)
    sharded, params = casts("dp=8,zero3,micro=1")
    assert sharded == 2 * sum(param.numel for param in params)
    assert casts("dp=8,zero3,micro=1,recompute=full")[0] < sharded / 4
    assert casts("dp=8,zero3,micro=1", framework=Framework(name="whole modules", autocasts=False))[0] == 0
