"""plan.json: what is written is read back, nothing else is let by, and a plan for something else is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.errors import LayoutError
from trireme.plan import (
    LayerChoice,
    Layout,
    Plan,
    Prediction,
    check_plan_matches,
    fingerprint,
    format_plan,
    parse_plan,
)

PLAN = Plan(
    layout=Layout(pp=2, tp=2, dp_shard=2, zero=2, vp=2, microbatches_per_step=8, sp=True),
    cuts=("layers.2", "layers.4", "layers.6"),
    layers=(LayerChoice(path="layers.0", recompute="full"), LayerChoice(path="层.1", offload=True)),
    precision="bf16",
    model="llama-8b",
    global_batch_seqs=64,
    seq_len=4096,
    predictions=(Prediction(name="step_s", value=1.25, low=1.0, high=1.5),),
    model_hash="m" * 32,
    cluster_hash="c" * 32,
    trireme_version="0.1.0",
)


def changed(**settings: Any) -> str:
    return json.dumps(json.loads(format_plan(PLAN)) | settings)


@given(
    pp=st.integers(1, 4),
    vp=st.integers(1, 3),
    zero=st.integers(0, 3),
    micro=st.integers(1, 40),
    recompute=st.sampled_from(["none", "selective", "full"]),
    value=st.floats(0, 1e15),
    spread=st.floats(0, 1e6),
)
@settings(max_examples=80, deadline=None)
def test_a_plan_that_is_written_is_read_back_equal(
    pp: int, vp: int, zero: int, micro: int, recompute: Any, value: float, spread: float
) -> None:
    layout = Layout(pp=pp, vp=vp, zero=zero, dp_shard=2, microbatches_per_step=micro)
    plan = replace(
        PLAN,
        layout=layout,
        cuts=tuple(f"layers.{stage}" for stage in range(1, layout.num_stages)),
        layers=(LayerChoice(path="layers.0", recompute=recompute),),
        predictions=(Prediction(name="peak_bytes.stage_0", value=value, low=value - spread, high=value + spread),),
    )
    assert parse_plan(format_plan(plan)) == plan


def test_the_number_of_microbatches_is_always_written() -> None:
    plan = replace(PLAN, layout=Layout(pp=2, vp=2, dp_shard=2, zero=2, tp=2))
    assert plan.layout.microbatches_per_step == 2
    assert parse_plan(format_plan(plan)) == plan


def test_equal_plans_are_the_same_text_with_a_line_for_each_layer() -> None:
    assert format_plan(PLAN) == format_plan(parse_plan(format_plan(PLAN)))
    assert '    {"path": "层.1", "recompute": "none", "offload": true}' in format_plan(PLAN)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "no JSON"),
        ("[]", r"plan = \[\] in the plan is not of the form"),
        (changed(format=2), "format 2; this version reads 1"),
        (changed(format=True), "format True"),
        (changed(precison="bf16"), "unknown key precison; did you mean precision"),
        (changed(layout={"pp": 1}), "layout lacks the key vp"),
        (changed(layout=json.loads(format_plan(PLAN))["layout"] | {"tq": 2}), "unknown key tq; did you mean"),
        (changed(layout=json.loads(format_plan(PLAN))["layout"] | {"tp": "2"}), "tp = '2' is no whole number"),
        (changed(layout=json.loads(format_plan(PLAN))["layout"] | {"vp": 0}), r"layout.vp = 0"),
        (changed(layout=json.loads(format_plan(PLAN))["layout"] | {"schedule": "1f1b"}), "not of the form interleaved"),
        (changed(seq_len=0), "seq_len = 0"),
        (changed(seq_len=True), "seq_len = true"),
        (changed(model=3), "model = 3"),
        (changed(cuts="layers.1"), "cuts"),
        (changed(cuts=["layers.1"]), "1 cuts given for 4 stages"),
        (changed(cuts=["a", "b", "a"]), "names a twice under cuts"),
        (changed(layers=[{"path": "a", "recompute": "some", "offload": False}]), r"layers\[0\].recompute"),
        (changed(layers=[{"path": "a", "recompute": "none", "offload": 1}]), r"layers\[0\].offload = 1"),
        (changed(predictions=[{"name": "step_s", "value": 3, "low": 1, "high": 2}]), "low <= value <= high"),
        (changed(predictions=[{"name": "step_s", "value": None, "low": 1, "high": 2}]), "value = null"),
        (format_plan(PLAN).replace('"NaN"', "NaN").replace("1.25", "NaN"), "value = NaN"),
        (format_plan(PLAN).replace("{\n", '{\n  "format": 1,\n', 1), "format twice"),
    ],
)
def test_anything_unknown_missing_or_of_another_type_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        parse_plan(text)


@pytest.mark.parametrize("key", sorted(json.loads(format_plan(PLAN))))
def test_no_key_may_be_missing(key: str) -> None:
    document = json.loads(format_plan(PLAN))
    del document[key]
    with pytest.raises(LayoutError, match=key):
        parse_plan(json.dumps(document))


def test_a_plan_for_another_model_or_version_is_refused_and_for_another_cluster_warned_about() -> None:
    made = {"model_hash": PLAN.model_hash, "cluster_hash": PLAN.cluster_hash, "version": "0.1.0"}
    assert check_plan_matches(PLAN, **made) == ()
    with pytest.raises(LayoutError, match=r"made by Trireme 0\.1\.0, this is 0\.2\.0") as caught:
        check_plan_matches(PLAN, **{**made, "version": "0.2.0"})
    assert caught.value.exit_code == 2
    with pytest.raises(LayoutError, match=r"made for llama-8b with hash mmm.* the model given has xyz"):
        check_plan_matches(PLAN, **{**made, "model_hash": "xyz"})
    (warning,) = check_plan_matches(PLAN, **{**made, "cluster_hash": "xyz"})
    assert "another cluster" in warning


def test_equal_descriptions_have_equal_hashes_and_any_difference_shows() -> None:
    from trireme.graph import PRESETS

    shape = PRESETS["llama-8b"]
    assert fingerprint(shape) == fingerprint(replace(shape))
    assert fingerprint(shape) != fingerprint(replace(shape, norm_eps=shape.norm_eps * 2))
    assert fingerprint({"a": 1, "b": (2, 3)}) == fingerprint({"b": [2, 3], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 1.5})
    assert len(fingerprint(shape)) == 32


def test_the_graph_of_a_large_model_is_hashed_at_once_and_differs_from_its_kin() -> None:
    from trireme.graph import find_graph

    hashes = {fingerprint(find_graph(name)) for name in ("llama-3-70b", "llama-3-405b", "gpt3-175b")}
    assert len(hashes) == 3
    assert fingerprint(find_graph("llama-3-70b")) in hashes
