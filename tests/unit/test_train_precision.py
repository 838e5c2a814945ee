"""Number formats and the loss scale."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.train_pieces import CPU, TinyLM, call, loss_fn, make_batch, make_stepper, section
from trireme.config import PrecisionSection
from trireme.errors import DeviceError
from trireme.train import (
    Objective,
    Precision,
    apply_precision,
    build_optimizer,
    build_precision,
    choose_precision,
    decision_from_json,
)
from trireme.train import precision as precision_file
from trireme.train.scaler import LossScaler


def test_amp_05_fp16_always_has_a_loss_scale_and_bf16_never():
    scalers = {p: Precision(policy=p, device=CPU).build_scaler() for p in ("fp32", "bf16", "fp16", "bf16_pure")}
    assert {policy for policy, scaler in scalers.items() if scaler is not None} == {"fp16"}


def test_the_first_loss_scale_and_its_growth_come_from_the_settings():
    section_ = PrecisionSection(policy="fp16", init_loss_scale=8.0, loss_scale_growth_steps=2)
    scaler = build_precision("fp16", device=CPU, section=section_).build_scaler()
    assert scaler is not None
    scales = []
    for overflow in (False, False, True, False, False):
        scaler.update(overflow=overflow)
        scales.append(scaler.scale)
    assert scales == [8.0, 16.0, 8.0, 8.0, 16.0]


def test_the_loss_scale_follows_torchs_own_rule():
    ours = LossScaler(init_scale=1024.0, growth_steps=3)
    theirs = torch.amp.GradScaler(CPU.type, init_scale=1024.0, growth_interval=3)
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for overflow in (False, False, True, False, False, False, True, True, False, False, False, False):
        theirs.scale(torch.zeros(()))
        parameter.grad = torch.full((2,), float("inf") if overflow else 1.0)
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflow=overflow)
        assert ours.scale == theirs.get_scale()


def test_an_unsupported_format_is_an_error_unless_told_to_fall_back(monkeypatch):
    monkeypatch.setattr(precision_file, "can_compute", lambda dtype, *, device: False)
    with pytest.raises(DeviceError, match="fallback"):
        build_precision("fp16", device=CPU)
    notices: list[str] = []
    taken = build_precision("fp16", device=CPU, section=PrecisionSection(fallback="fp32"), notice=notices.append)
    assert taken.policy == "fp32"
    assert len(notices) == 1


def test_an_unknown_policy_is_named():
    with pytest.raises(DeviceError, match="fp8"):
        build_precision("fp8", device=CPU)  # type: ignore[arg-type]


class WithTable(nn.Module):
    """A matrix and a table of angles, as rotary embeddings have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("angles", torch.arange(4096.0))


def test_amp_08_pure_bf16_casts_parameters_and_leaves_tables():
    module = apply_precision(WithTable(), precision=Precision(policy="bf16_pure", device=CPU))
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}
    assert torch.equal(module.angles, torch.arange(4096.0))


@pytest.mark.parametrize("policy", ["bf16", "fp16"])
def test_mixed_policies_keep_fp32_weights_and_optimizer_state(policy):
    stepper = make_stepper(precision=policy)
    stepper(make_batch(0))
    assert {p.dtype for p in stepper.module.parameters()} == {torch.float32}
    state = next(iter(stepper.optimizer.state.values()))
    assert state["exp_avg"].dtype == torch.float32


def _norms_after(policy: str, *, steps: int = 50):
    precision = build_precision(policy, device=CPU)  # type: ignore[arg-type]
    module = apply_precision(TinyLM(), precision=precision)
    settings = section(lr=1e-4, weight_decay=0.0)
    stepper = make_stepper(module, optimizer=build_optimizer(module, settings), precision=precision)
    ratios = [stepper(make_batch(step)).frozen_ratios for step in range(steps)]
    norms = [p.detach().float() for name, p in module.named_parameters() if name.endswith("norm.weight")]
    return torch.cat(norms), [r for r in ratios if r]


def test_amp_06_norm_weights_move_under_mixed_bf16():
    norms, ratios = _norms_after("bf16")
    assert bool((norms != 1.0).all())
    assert ratios == []


def test_amp_06_pure_bf16_warns_and_counts_what_rounding_froze():
    notices: list[str] = []
    build_precision("bf16_pure", device=CPU, notice=notices.append)
    assert len(notices) == 1
    _, ratios = _norms_after("bf16_pure")
    assert ratios
    assert all(set(r) == {"matrices", "vectors"} for r in ratios)
    assert max(r["vectors"] for r in ratios) > 0.5


def test_auto_measures_and_leaves_no_trace():
    module = TinyLM(dropout=0.2)
    objective = Objective(loss_fn=loss_fn, call=call)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    rng = torch.get_rng_state()
    decision = choose_precision(module, make_batch(0), objective=objective, device=CPU)
    assert decision.choice in ("fp32", "bf16")
    assert decision.figures["fp32_s"] > 0
    assert decision.figures["bf16_s"] > 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert torch.equal(rng, torch.get_rng_state())
    assert all(p.grad is None for p in module.parameters())
    assert decision_from_json(decision.to_json()) == decision


@pytest.mark.parametrize(("bf16_s", "choice"), [(0.5, "bf16"), (0.95, "fp32"), (2.0, "fp32")])
def test_auto_takes_bf16_only_for_a_clear_gain(monkeypatch, bf16_s, choice):
    from trireme.train import measure

    monkeypatch.setattr(measure, "fastest_of", lambda trials, *, device: {"fp32": 1.0, "bf16": bf16_s})
    objective = Objective(loss_fn=loss_fn, call=call)
    assert choose_precision(TinyLM(), make_batch(0), objective=objective, device=CPU).choice == choice


def test_auto_takes_fp32_where_bf16_is_missing(monkeypatch):
    from trireme.train import measure

    monkeypatch.setattr(measure, "can_compute", lambda dtype, *, device: False)
    objective = Objective(loss_fn=loss_fn, call=call)
    decision = choose_precision(TinyLM(), make_batch(0), objective=objective, device=CPU)
    assert (decision.choice, decision.reason) == ("fp32", "unsupported")
