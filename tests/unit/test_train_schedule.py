"""Steps and learning rates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.train_pieces import section
from trireme.errors import TrainError
from trireme.train import StepPlan, build_schedule, lr_at, plan_steps, resume_schedule, schedule_from_json

KINDS = ("constant", "linear", "cosine", "wsd")


def _rates(**keys: object) -> list[float]:
    settings_ = section(**keys)
    plan = plan_steps(settings_, seq_len=16, samples_per_epoch=100)
    schedule = build_schedule(settings_, plan=plan)
    return [lr_at(step, schedule=schedule) for step in range(plan.max_steps)]


def test_warm_up_climbs_in_equal_parts_to_the_peak():
    rates = _rates(max_steps=20, lr=1.0, warmup_steps=4, schedule="cosine")
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
def test_the_last_step_has_the_floor(kind):
    rates = _rates(max_steps=20, lr=2.0, warmup_steps=3, schedule=kind, min_lr_ratio=0.1)
    assert rates[-1] == pytest.approx(0.2, rel=1e-12)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_the_middle_of_a_cosine_is_half_way():
    rates = _rates(max_steps=11, lr=1.0, warmup_steps=0, schedule="cosine", min_lr_ratio=0.0)
    assert rates[5] == pytest.approx(0.5)
    assert rates[2] == pytest.approx((1 + math.cos(0.2 * math.pi)) / 2)


def test_wsd_stays_at_the_peak_until_its_decay():
    rates = _rates(max_steps=20, lr=1.0, warmup_steps=2, schedule="wsd", decay_ratio=0.25, min_lr_ratio=0.0)
    assert rates[2:15] == [1.0] * 13
    assert rates[15:] == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.0])


def test_warm_up_in_tokens_is_warm_up_in_steps():
    keys = {"max_steps": 20, "global_batch_seqs": 8, "schedule": "linear"}
    in_tokens = _rates(**keys, warmup_steps=None, warmup_tokens=8 * 16 * 3 - 5)
    assert in_tokens == _rates(**keys, warmup_steps=3)


def test_a_single_step_gets_the_peak():
    assert _rates(max_steps=1, lr=1.0, warmup_steps=0) == [1.0]


@given(
    kind=st.sampled_from(KINDS),
    max_steps=st.integers(1, 300),
    warmup=st.integers(0, 320),
    floor=st.floats(0, 1),
    decay=st.floats(0.01, 1),
)
@settings(max_examples=80, deadline=None)
def test_every_rate_lies_between_nothing_and_the_peak(kind, max_steps, warmup, floor, decay):
    rates = _rates(
        max_steps=max_steps, lr=1.0, warmup_steps=warmup, schedule=kind, min_lr_ratio=floor, decay_ratio=decay
    )
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    after = rates[warmup:]
    assert after == sorted(after, reverse=True)


@pytest.mark.parametrize("keys", [{}, {"max_steps": 3, "epochs": 1.0}])
def test_the_length_is_given_once(keys):
    with pytest.raises(TrainError, match="max_steps"):
        plan_steps(section(**{"max_steps": None, **keys}), seq_len=16, samples_per_epoch=10)


def test_tokens_round_up_to_a_step():
    settings_ = section(max_steps=None, max_tokens=1000, global_batch_seqs=8)
    assert plan_steps(settings_, seq_len=16, samples_per_epoch=10).max_steps == 8


@pytest.mark.parametrize("global_batch_seqs", [2, 4, 6])
def test_los_09_planned_steps_use_each_sample_exactly_epochs_times(global_batch_seqs):
    """LOS-09: 4 samples, 2 ranks, micro 1, accumulation 1, 2, 3, two epochs."""
    settings_ = section(max_steps=None, epochs=2.0, global_batch_seqs=global_batch_seqs)
    plan = plan_steps(settings_, seq_len=16, samples_per_epoch=4)
    used = [plan.seqs_at(step) for step in range(plan.max_steps)]
    assert plan.max_steps == math.ceil(8 / global_batch_seqs)
    assert sum(used) == 8
    assert min(used) > 0


@given(samples=st.integers(1, 500), batch=st.integers(1, 64), tenths=st.integers(1, 60))
@settings(max_examples=60, deadline=None)
def test_los_09_no_step_of_a_plan_is_empty_and_none_is_missing(samples, batch, tenths):
    settings_ = section(max_steps=None, epochs=tenths / 10, global_batch_seqs=batch)
    plan = plan_steps(settings_, seq_len=16, samples_per_epoch=samples)
    assert sum(plan.seqs_at(step) for step in range(plan.max_steps)) == math.ceil(samples * tenths / 10)
    assert plan.seqs_at(plan.max_steps - 1) > 0
    assert plan.seqs_at(plan.max_steps) == 0


def _schedule(**keys: object):
    settings_ = section(**{"warmup_steps": None, **keys})
    plan = plan_steps(settings_, seq_len=16, samples_per_epoch=100)
    return build_schedule(settings_, plan=plan)


def test_ckp_28_the_same_settings_go_on_with_the_same_rates():
    saved = _schedule(max_steps=15)
    again = resume_schedule(schedule_from_json(saved.to_json()), asked=_schedule(max_steps=15), step=7)
    assert again == saved


def test_ckp_28_another_length_needs_a_decision_and_the_message_has_both_rates():
    saved, asked = _schedule(max_steps=20, lr=1e-3), _schedule(max_steps=40, lr=1e-3)
    with pytest.raises(TrainError) as error:
        resume_schedule(saved, asked=asked, step=15)
    text = str(error.value)
    assert f"{lr_at(15, schedule=saved):.6g}" in text
    assert f"{lr_at(15, schedule=asked):.6g}" in text
    assert "20" in text
    assert "40" in text


def test_stretch_redraws_and_hold_keeps_the_last_rate():
    saved, asked = _schedule(max_steps=20), _schedule(max_steps=40)
    assert resume_schedule(saved, asked=asked, step=15, extend="stretch") == asked
    held = resume_schedule(saved, asked=asked, step=15, extend="hold")
    assert [lr_at(s, schedule=held) for s in range(20)] == [lr_at(s, schedule=saved) for s in range(20)]
    assert {lr_at(s, schedule=held) for s in range(20, 40)} == {lr_at(19, schedule=saved)}


def test_a_decision_once_taken_is_not_asked_for_again():
    asked = _schedule(max_steps=40)
    held = resume_schedule(_schedule(max_steps=20), asked=asked, step=15, extend="hold")
    again = schedule_from_json(held.to_json())
    assert resume_schedule(again, asked=asked, step=30) == held


def test_ckp_28_another_rate_needs_a_decision():
    saved, asked = _schedule(max_steps=20, lr=1e-3), _schedule(max_steps=20, lr=2e-3)
    with pytest.raises(TrainError, match=r"0\.001 -> 0\.002.*--accept train\.lr"):
        resume_schedule(saved, asked=asked, step=7)
    assert resume_schedule(saved, asked=asked, step=7, new_lr=True) == asked


def test_a_longer_constant_run_has_nothing_to_decide():
    saved = _schedule(max_steps=20, schedule="constant")
    asked = _schedule(max_steps=30, schedule="constant")
    assert resume_schedule(saved, asked=asked, step=10) == asked


def test_steps_and_tokens_can_not_both_set_the_warm_up():
    with pytest.raises(TrainError, match="warmup_tokens"):
        build_schedule(
            section(warmup_steps=1, warmup_tokens=10),
            plan=StepPlan(max_steps=10, global_batch_seqs=8, step_tokens=128),
        )


def test_a_warm_up_longer_than_the_run_is_said():
    notices: list[str] = []
    plan = StepPlan(max_steps=10, global_batch_seqs=8, step_tokens=128)
    build_schedule(section(max_steps=10, warmup_steps=11), plan=plan, notice=notices.append)
    assert len(notices) == 1
    build_schedule(section(max_steps=10, warmup_steps=10), plan=plan, notice=notices.append)
    assert len(notices) == 1
