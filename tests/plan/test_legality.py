"""The table of what can't be combined: every row broken and mended, the nearest layouts really legal."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trireme.errors import LayoutError
from trireme.plan import (
    COST_RULES,
    RULES,
    SCHEDULE_NAMES,
    Layout,
    ModelFacts,
    build_schedule,
    check_layout,
    check_schedule,
    facts_of_graph,
    layout_costs,
    nearest_legal,
    parse_layout,
    require_legal,
)

LLAMA_8B = ModelFacts(
    num_layers=32, num_heads=32, num_kv_heads=8, d_ffn=14336, vocab_size=128256, num_experts=0, seq_len=8192,
    attention="plain",
)  # fmt: skip


def read(text: str) -> Layout:
    return parse_layout(text).layout


BROKEN = [
    ("world", "tp=2,pp=2", {"ranks": 8}, "needs 4 ranks; there are 8"),
    ("stages_per_rank", "pp=2,schedule=zb,vp=2", {}, "vp = 1, not 2"),
    ("stages_per_rank", "pp=2,schedule=zbv,vp=3", {}, "vp = 2, not 3"),
    ("stages_per_rank", "pp=2,schedule=interleaved,vp=1", {}, "vp = >= 2, not 1"),
    ("stages", "pp=4,vp=2", {"num_layers": 7}, "8 stages of at least a layer each; there are 7"),
    ("interleaved_few", "pp=4,schedule=interleaved,micro=3", {}, "pp = 4 micro-batches"),
    ("zero_bubble_reshard", "pp=2,schedule=zb,dp=2,zero3", {}, "makes gradients wrong"),
    ("zero_bubble_reshard", "pp=2,schedule=zbv,hsdp=2x2", {}, "makes gradients wrong"),
    ("zero_bubble_recompute", "pp=2,schedule=zb,recompute=full", {}, "forward again"),
    ("zero_bubble_recompute", "pp=2,schedule=zbv,recompute=selective", {}, "forward again"),
    ("heads", "tp=8", {"num_heads": 28}, "tp = 8 does not divide 28 attention heads"),
    ("heads", "tp=4,cp=4,cp_kind=ulysses", {"num_heads": 8}, r"tp \* cp = 4 \* 4 does not divide 8"),
    ("kv_heads", "tp=7", {"num_heads": 28, "num_kv_heads": 4}, "neither divides 4 key-value heads"),
    ("narrow", "tp=8", {"d_ffn": 6}, "d_ffn = 6"),
    ("narrow", "tp=8", {"vocab_size": 7}, "vocab_size = 7"),
    ("sequence_cp", "cp=2", {"seq_len": 15}, "sequence length 15; 14 / 16 would do"),
    ("sequence_tp", "tp=2,sp", {"seq_len": 15}, "length 15; 14 / 16 would do"),
    ("cp_recurrent", "cp=2", {"attention": "recurrent"}, "carries a state"),
    ("ring_biased", "cp=2,cp_kind=ring", {"attention": "biased"}, "allgather and ulysses can"),
    ("experts", "ep=3,dp=3", {"num_experts": 8}, "does not divide 8 experts"),
    ("experts", "ep=2,dp=2", {"num_experts": 0}, "does not divide 0 experts"),
    ("expert_ranks", "ep=4,dp=2", {}, "must divide dp_shard"),
    ("batch_dp", "dp=3", {"global_batch_seqs": 8}, "6 / 9 would do"),
    ("batch_micro", "dp=4,micro=4", {"global_batch_seqs": 8}, "4 micro-batches"),
]


@pytest.mark.parametrize(("rule", "text", "facts", "reason"), BROKEN)
def test_each_row_is_refused_with_its_reason_and_mended_by_the_nearest(
    rule: str, text: str, facts: dict[str, object], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ModelFacts(**facts)  # type: ignore[arg-type]
    violations = {violation.rule: violation for violation in check_layout(read(text), known)}
    assert rule in violations
    with pytest.raises(LayoutError, match=reason):
        require_legal(read(text), known)
    nearest = nearest_legal(read(text), known)
    assert nearest
    assert all(check_layout(layout, known) == [] for layout in nearest)
    monkeypatch.setenv("TRIREME_LANG", "zh")
    assert any("\u4e00" <= letter <= "\u9fff" for letter in violations[rule].reason)


def test_no_row_is_without_its_test() -> None:
    assert {rule.id for rule in RULES} == {rule for rule, *_ in BROKEN}


@pytest.mark.parametrize(
    "text",
    [
        "dp=8", "dp=8,zero1", "dp=8,zero2", "dp=8,zero3", "hsdp=2x4", "tp=2", "tp=8,sp", "pp=4", "pp=4,vp=2",
        "pp=4,schedule=zb", "pp=4,schedule=zbv", "pp=4,schedule=zb,dp=2,zero2", "cp=2", "cp=2,cp_kind=ring",
        "cp=4,cp_kind=ulysses", "dp=2,tp=2,pp=2", "zero3,dp=2,tp=2,pp=2,recompute=full", "tp=16", "pp=5",
    ],
)  # fmt: skip
def test_layouts_that_people_use_are_legal(text: str) -> None:
    assert check_layout(read(text), LLAMA_8B) == []


def test_what_is_not_known_is_not_judged() -> None:
    assert check_layout(read("tp=7,pp=99,cp=3,dp=5"), ModelFacts()) == []


def test_pln_06_28_heads_with_4_kv_heads_on_6_7_and_8_ranks() -> None:
    facts = {"num_heads": 28, "num_kv_heads": 4}
    for ranks, best in ((6, "dp=3,tp=2"), (7, "dp=7"), (8, "dp=2,tp=4")):
        nearest = nearest_legal(Layout(tp=ranks), ModelFacts(ranks=ranks, **facts))
        assert str(nearest[0]) == best
        assert all(28 % layout.tp == 0 and layout.world_size == ranks for layout in nearest)


def test_pln_11_a_data_degree_of_23_for_32_sequences_is_refused_with_the_equation() -> None:
    layout = parse_layout("tp=8,pp=8", ranks=1472).layout
    assert layout.dp == 23
    facts = ModelFacts(ranks=1472, global_batch_seqs=32)
    with pytest.raises(LayoutError, match="Data degree 23 does not divide the global batch of 32 sequences; 23 / 46"):
        require_legal(layout, facts)


def test_pip_04_30_layers_over_4_stages_are_allowed_and_said_to_be_uneven() -> None:
    facts = ModelFacts(num_layers=30)
    assert check_layout(Layout(pp=4), facts) == []
    assert [cost.reason for cost in layout_costs(Layout(pp=4), facts)] == [
        "30 layers in 4 stages come out uneven; the longest stage is 6.7% above the mean."
    ]


COSTLY = [
    ("kv_replicated", "tp=8", {"num_kv_heads": 2}, 3.0),
    ("uneven_vocab", "tp=4", {"vocab_size": 50257}, 3 / 50257),
    ("uneven_ffn", "tp=3", {"d_ffn": 10}, 0.2),
    ("uneven_layers", "pp=3", {"num_layers": 7}, 2 / 7),
    ("uneven_micro", "micro=3", {"global_batch_seqs": 8}, 1 / 8),
    ("not_full", "pp=16,micro=4", {}, 15 / 4),
    ("gathers", "pp=2,dp=2,zero3,micro=8", {}, 7.0),
    ("tp_across_nodes", "tp=16", {"ranks_per_node": 8}, 0.0),
    ("cp_unbalanced", "cp=2", {"seq_len": 14}, 0.5),
    ("no_effect", "sp,zero3,schedule=zb", {}, 0.0),
]


@pytest.mark.parametrize(("rule", "text", "facts", "extra"), COSTLY)
def test_what_is_allowed_at_a_cost_is_told_with_how_much(
    rule: str, text: str, facts: dict[str, object], extra: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ModelFacts(**facts)  # type: ignore[arg-type]
    costs = {cost.rule: cost for cost in layout_costs(read(text), known)}
    assert costs[rule].extra_ratio == pytest.approx(extra)
    english = costs[rule].reason
    monkeypatch.setenv("TRIREME_LANG", "zh")
    assert costs[rule].reason != english


def test_no_costly_row_is_without_its_test() -> None:
    assert {rule.id for rule in COST_RULES} == {rule for rule, *_ in COSTLY}


def test_16_stages_with_4_microbatches_are_said_to_work_21_percent_of_the_time() -> None:
    reasons = [cost.reason for cost in layout_costs(read("pp=16,micro=4"), ModelFacts())]
    assert any("work 21% of the time" in reason for reason in reasons)


@given(
    pp=st.sampled_from([1, 2, 3, 4, 6, 8, 16]),
    tp=st.integers(1, 16),
    cp=st.sampled_from([1, 2, 3, 4]),
    ep=st.sampled_from([1, 2, 3, 8]),
    zero=st.integers(0, 3),
    sp=st.booleans(),
    schedule=st.sampled_from(SCHEDULE_NAMES),
    recompute=st.sampled_from(["none", "full"]),
    cp_kind=st.sampled_from(["allgather", "ring", "ulysses"]),
    micro=st.none() | st.integers(1, 9),
    ranks=st.sampled_from([1, 6, 7, 8, 12, 24, 64]),
    experts=st.sampled_from([0, 8]),
)
@example(
    pp=8, tp=7, cp=4, ep=1, zero=0, sp=False, schedule="gpipe", recompute="none", cp_kind="allgather", micro=None,
    ranks=12, experts=0,
)  # fmt: skip
@settings(max_examples=120, deadline=None)
def test_the_nearest_layouts_are_legal_for_the_ranks_there_are_and_there_always_is_one(
    pp: int, tp: int, cp: int, ep: int, zero: int, sp: bool, schedule: str, recompute: str, cp_kind: str,
    micro: int | None, ranks: int, experts: int,
) -> None:  # fmt: skip
    layout = Layout(
        pp=pp, tp=tp, cp=cp, ep=ep, zero=zero, sp=sp, schedule=schedule, recompute=recompute, cp_kind=cp_kind,
        microbatches_per_step=micro,
    )  # type: ignore[arg-type]  # fmt: skip
    facts = ModelFacts(
        ranks=ranks, num_layers=12, num_heads=24, num_kv_heads=8, d_ffn=640, vocab_size=1000, seq_len=480,
        num_experts=experts, attention="plain",
    )  # fmt: skip
    nearest = nearest_legal(layout, facts)
    assert nearest
    for found in nearest:
        assert found.world_size == ranks
        assert check_layout(found, facts) == []
    assert (nearest[0] == layout) == (check_layout(layout, facts) == [])


def test_every_legal_layout_has_a_schedule_that_runs() -> None:
    for name in SCHEDULE_NAMES:
        for pp in (1, 2, 4):
            layout = Layout(pp=pp, schedule=name)
            schedule = build_schedule(
                layout.schedule, pp=layout.pp, vp=layout.vp, num_microbatches=layout.num_microbatches
            )
            assert schedule.num_stages == layout.num_stages
            check_schedule(schedule)


@pytest.mark.parametrize(
    ("model", "layers", "heads", "kv_heads", "experts"),
    [("llama-3-405b", 126, 128, 8, 0), ("gpt3-175b", 96, 96, 96, 0), ("deepseek-v3", 61, 128, 128, 256)],
)
def test_facts_are_read_off_the_graph_of_a_model(
    model: str, layers: int, heads: int, kv_heads: int, experts: int
) -> None:
    from trireme.graph import find_graph

    facts = facts_of_graph(find_graph(model), seq_len=8192, ranks=16384)
    assert (facts.num_layers, facts.num_heads, facts.num_kv_heads, facts.num_experts) == (
        layers, heads, kv_heads, experts,
    )  # fmt: skip
    assert (facts.seq_len, facts.ranks) == (8192, 16384)
    published = parse_layout("tp=8,pp=16,zero2,sp", ranks=16384).layout
    assert check_layout(published, facts) == []
