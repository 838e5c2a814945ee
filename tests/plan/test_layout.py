"""Layouts: what each word means, what is filled in, what is refused and with which nearest thing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import LayoutError
from trireme.plan import (
    SCHEDULE_NAMES,
    Layout,
    format_layout,
    layout_mapping,
    parse_layout,
)


def read(source: str | dict[str, Any], *, ranks: int | None = None) -> Layout:
    return parse_layout(source, ranks=ranks).layout


degrees = st.sampled_from([1, 1, 2, 3, 4, 8])
layouts = st.builds(
    Layout,
    pp=degrees,
    vp=st.sampled_from([0, 1, 2, 3]),
    dp_replicate=degrees,
    dp_shard=degrees,
    cp=degrees,
    tp=degrees,
    ep=degrees,
    zero=st.integers(0, 3),
    sp=st.booleans(),
    schedule=st.sampled_from(SCHEDULE_NAMES),
    microbatches_per_step=st.none() | st.integers(1, 64),
    recompute=st.sampled_from(["none", "selective", "full", "auto"]),
    cp_kind=st.sampled_from(["allgather", "ring", "ulysses"]),
)


@given(layout=layouts)
@settings(max_examples=400, deadline=None)
def test_what_is_printed_reads_as_the_same_layout(layout: Layout) -> None:
    assert read(format_layout(layout)) == layout
    assert read(format_layout(layout), ranks=layout.world_size) == layout
    mapped = read(layout_mapping(layout))
    assert mapped.num_microbatches == layout.num_microbatches
    assert format_layout(mapped).replace(f",micro={mapped.num_microbatches}", "") == format_layout(layout).replace(
        f",micro={layout.num_microbatches}", ""
    )


def test_the_full_grammar_is_read() -> None:
    text = "tp=2,pp=2,zero3,sp,schedule=interleaved,micro=8,vp=3,hsdp=2x4,cp=2,cp_kind=ring,recompute=full,ep=4"
    assert read(text) == Layout(
        tp=2, pp=2, zero=3, sp=True, schedule="interleaved", microbatches_per_step=8, vp=3, dp_replicate=2, dp_shard=4,
        cp=2, cp_kind="ring", recompute="full", ep=4,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("dp=4", Layout(dp_replicate=4)),
        ("dp=4,zero1", Layout(dp_shard=4, zero=1)),
        ("dp=4,zero2", Layout(dp_shard=4, zero=2)),
        ("zero=3,dp=4", Layout(dp_shard=4, zero=3)),
        ("dp=4,zero0", Layout(dp_replicate=4)),
        ("hsdp=2x4", Layout(dp_replicate=2, dp_shard=4, zero=3)),
        ("hsdp=2x4,zero1", Layout(dp_replicate=2, dp_shard=4, zero=1)),
        ("dp_shard=2", Layout(dp_shard=2, zero=3)),
        ("ep=2,dp=2", Layout(ep=2, dp_shard=2)),
        ("pp=2,schedule=interleaved", Layout(pp=2, vp=2, schedule="interleaved")),
        ("pp=2,vp=4", Layout(pp=2, vp=4, schedule="interleaved")),
        ("pp=2,schedule=zbv", Layout(pp=2, vp=2, schedule="zbv")),
        ("pp2 tp2+sp", Layout(pp=2, tp=2, sp=True)),
        ("tp = 2 , pp = 2", Layout(pp=2, tp=2)),
        ("recompute", Layout(recompute="full")),
        ("sp=false", Layout()),
        ("", Layout()),
    ],
)
def test_each_word_means_what_the_contract_says(text: str, expected: Layout) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "ranks", "expected"),
    [
        ("tp=2,pp=2", 16, Layout(pp=2, tp=2, dp_replicate=4)),
        ("zero3,tp=2,pp=2", 8, Layout(pp=2, tp=2, dp_shard=2, zero=3)),
        ("zero3", 2, Layout(dp_shard=2, zero=3)),
        ("dp_replicate=2,zero3", 8, Layout(dp_replicate=2, dp_shard=4, zero=3)),
        ("dp_shard=2", 8, Layout(dp_replicate=4, dp_shard=2, zero=3)),
        ("ep=4", 8, Layout(dp_shard=8, ep=4)),
        ("dp=-1,tp=4", 8, Layout(dp_replicate=2, tp=4)),
        ("", 4, Layout(dp_replicate=4)),
    ],
)
def test_a_missing_data_parallel_degree_is_ranks_over_rest(text: str, ranks: int, expected: Layout) -> None:
    parsed = parse_layout(text, ranks=ranks)
    assert parsed.layout == expected
    assert any(f"takes the rest of {ranks} ranks" in notice for notice in parsed.notices)


def test_the_mapping_reads_like_the_text() -> None:
    assert read({"tp": 2, "pp": 2, "dp_shard": 2}, ranks=8) == read("tp=2,pp=2,dp_shard=2", ranks=8)
    assert read({"tp": "2", "sp": True, "zero": None}) == Layout(tp=2, sp=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"hybrid_configs": {"dp_degree": 2, "mp_degree": 2, "pp_degree": 2, "sharding_stage": 3}},
         Layout(dp_shard=2, tp=2, pp=2, zero=3)),
        ({"dp_degree": 2, "sharding_degree": 4}, Layout(dp_replicate=2, dp_shard=4, zero=1)),
        ({"dp_degree": 2, "sharding_degree": 1, "mp_degree": 4}, Layout(dp_replicate=2, tp=4)),
        ({"sharding_degree": 4, "sharding_stage": 2}, Layout(dp_shard=4, zero=2)),
        ({"sep_degree": 2}, Layout(cp=2, cp_kind="ulysses")),
        ({"sep_degree": 1}, Layout()),
        ({"pp_degree": 4, "schedule_mode": "VPP", "vpp_degree": 3}, Layout(pp=4, vp=3, schedule="interleaved")),
        ({"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 4, "context_parallel_size": 2,
          "expert_model_parallel_size": 8, "sequence_parallel": True, "use_distributed_optimizer": True},
         Layout(tp=8, pp=4, cp=2, ep=8, sp=True, zero=1)),
        ({"cp_size": 2, "cp_comm_type": "p2p"}, Layout(cp=2, cp_kind="ring")),
        ({"dp_replicate_size": 2, "dp_shard_size": 4, "tp_size": 2}, Layout(dp_replicate=2, dp_shard=4, tp=2, zero=3)),
        ({"gradient_checkpointing": True, "fsdp_sharding_strategy": "SHARD_GRAD_OP", "dp": 2},
         Layout(dp_shard=2, zero=2, recompute="full")),
        ({"zero_optimization": {"stage": 3}, "dp": 2}, Layout(dp_shard=2, zero=3)),
        ({"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "ZBVZeroBubble"},
         Layout(pp=2, vp=2, schedule="zbv")),
    ],
)  # fmt: skip
def test_words_of_others_are_read_and_said(words: dict[str, Any], expected: Layout) -> None:
    parsed = parse_layout(words)
    assert parsed.layout == expected
    assert any("is read as" in notice for notice in parsed.notices)


def test_a_word_of_others_is_told_once_with_the_axis_it_means() -> None:
    parsed = parse_layout({"sharding_degree": 4, "dp_degree": 2, "schedule_mode": "VPP", "use_recompute": False})
    assert parsed.notices == (
        "sharding_degree = 4 is read as dp_shard = 4, zero = 1.",
        "schedule_mode = VPP is read as schedule = interleaved.",
        "use_recompute = False switches nothing on.",
        "dp_degree = 2 is read as dp_replicate = 2.",
    )
    assert parse_layout("schedule=1F1B,pp=2").notices == ()
    assert parse_layout("schedule=ZB-H1,pp=2").notices == ("schedule = ZB-H1 is read as schedule = zb.",)


def test_every_layout_word_that_settings_know_is_read_here_too() -> None:
    from trireme.config.alias import RENAMED

    for key, words in RENAMED.items():
        section, _, name = key.partition(".")
        value = {"zero": 3, "sp": True}.get(name, 4)
        for word in words if section == "layout" else ():
            assert getattr(read({word: value, **({"tp": 2} if name == "sp" else {})}), name) == value, word


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tq=2", "no tq; did you mean tp"),
        ("mp_degre=2", "did you mean mp_degree"),
        ("banana=2", "A layout has no banana; it has pp, vp, dp"),
        ("tp=0", "tp = 0 is no whole number of at least 1"),
        ("tp=two", "tp = 'two' is no whole number"),
        ("tp=2.5", "no whole number"),
        ("tp", "tp needs a value"),
        ("zero4", "zero = 4 is none of 0, 1, 2, 3"),
        ("schedule=1f1", "did you mean 1f1b"),
        ("cp_kind=rings", "did you mean ring"),
        ("sp=maybe", "none of true, false"),
        ("tp=2,tp=4", "tp is given twice, as 2 and as 4"),
        ("tp=2,mp_degree=4", "tp is given twice"),
        ("dp=2,dp_shard=2", "dp = 2 stands beside dp_shard"),
        ("hsdp=2x2,dp=2", "stands beside"),
        ("hsdp=2", "COPIESxSHARDS"),
        ("micro=0", "micro = 0"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_nearest_that_can(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        parse_layout(text)


@pytest.mark.parametrize(
    ("text", "ranks", "near"),
    [
        ("tp=3,pp=2", 8, "tp=2; pp=1|tp=4|tp=2"),
        ("tp=16", 8, "tp=8"),
        ("dp=3", 8, "dp_replicate=8; 3 ranks"),
        ("tp=8,pp=8", 1472 + 8, "pp=5"),
    ],
)
def test_degrees_that_do_not_multiply_to_the_ranks_name_the_nearest(text: str, ranks: int, near: str) -> None:
    with pytest.raises(LayoutError, match=near) as caught:
        parse_layout(text, ranks=ranks)
    assert f"{ranks} ranks" in str(caught.value)


def test_a_layout_built_by_hand_is_checked_too() -> None:
    with pytest.raises(LayoutError):
        Layout(tp=True)
    with pytest.raises(LayoutError):
        Layout(zero=4)
    with pytest.raises(LayoutError):
        Layout(schedule="1F1B")  # type: ignore[arg-type]


def test_1f1b_with_several_stages_a_rank_is_interleaved_and_said() -> None:
    parsed = parse_layout("pp=2,schedule=1f1b,vp=2")
    assert parsed.layout.schedule == "interleaved"
    assert any("is the interleaved schedule" in notice for notice in parsed.notices)
    assert Layout(pp=2, vp=2).schedule == "interleaved"


def test_microbatches_unless_said_are_the_least_that_fills_the_pipeline() -> None:
    assert read("dp=4").num_microbatches == 1
    assert read("pp=4").num_microbatches == 4
    assert read("pp=4,schedule=zbv").num_microbatches == 8
    assert read("pp=4,micro=3").num_microbatches == 3
