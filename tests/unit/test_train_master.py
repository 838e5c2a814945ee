"""Fp32 copies of 16-bit weights, stochastic rounding, 8-bit products: what each keeps, and what it loses."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.unit.train_pieces import CPU, TinyLM, make_batch, make_pieces, make_stepper, section
from trireme.config import ModelSection, PrecisionSection
from trireme.errors import DeviceError, LayoutError
from trireme.models import build_model
from trireme.parallel import ChunkedOptimizer, Piece
from trireme.parallel.rounding import global_index, round_stochastically
from trireme.train import (
    StepPlan,
    apply_precision,
    build_optimizer,
    build_precision,
    build_schedule,
    fit,
    place_state,
    state_tensors,
)
from trireme.train import precision as precision_file
from trireme.train.float8 import convert_linears
from trireme.train.schedule import lr_at


def _stepper(policy: str, *, stochastic: bool = False, lr: float = 1e-4, **keys):
    settings = PrecisionSection(policy=policy, stochastic_rounding=stochastic, init_loss_scale=1024.0)  # type: ignore[arg-type]
    precision = build_precision(policy, device=CPU, section=settings)  # type: ignore[arg-type]
    module = apply_precision(TinyLM(), precision=precision)
    optimizer = build_optimizer(module, section(lr=lr, weight_decay=0.0))
    placed = place_state(optimizer, module=module, precision=precision, seed=3)
    return make_stepper(module, optimizer=placed, precision=precision, **keys)


def _norms(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().float() for name, p in module.named_parameters() if name.endswith("norm.weight")])


@pytest.mark.parametrize("policy", ["bf16_master", "fp16_master"])
def test_amp_06_fp32_copies_keep_updates_that_16_bit_weights_lose(policy):
    """50 updates of 1e-4: in the weights the spacing near 1 hides most, in the copies every norm has moved."""
    stepper = _stepper(policy)
    for step in range(50):
        stepper(make_batch(step))
    masters = [tensor for name, tensor in state_tensors(stepper).items() if name.endswith("norm.weight/master")]
    assert {tensor.dtype for tensor in masters} == {torch.float32}
    assert bool((torch.cat(masters) != 1.0).all())
    weights = {name: tensor for name, tensor in state_tensors(stepper).items() if name.startswith("model/")}
    for name, tensor in weights.items():
        if name != "model/head.weight":  # tied
            master = stepper.optimizer.state[stepper.module.get_parameter(name.removeprefix("model/"))]["master"]
            assert torch.equal(master.to(tensor.dtype), tensor)


def test_amp_06_stochastic_rounding_lets_norms_move_without_copies():
    stepper = _stepper("bf16_pure", stochastic=True)
    for step in range(50):
        stepper(make_batch(step))
    assert float((_norms(stepper.module) != 1.0).float().mean()) > 0.2
    assert not any(name.endswith("/master") for name in state_tensors(stepper))
    assert stepper.optimizer.state[stepper.module.norm.weight]["exp_avg"].dtype == torch.float32


def test_rounding_at_random_is_right_on_average_and_the_same_for_a_part():
    exact = torch.linspace(-3.0, 3.0, 2048)
    index = torch.arange(2048)
    rounded = torch.stack([round_stochastically(exact, index, key=key).float() for key in range(256)])
    spacing = 2.0**-7 * 2  # of bf16 below 4
    assert float((rounded.mean(0) - exact).abs().max()) < spacing / 4
    assert bool(((rounded - exact).abs() < spacing).all())
    part = round_stochastically(exact[100:200], index[100:200], key=5)
    assert torch.equal(part, round_stochastically(exact, index, key=5)[100:200])
    odd = torch.tensor([float("inf"), float("-inf"), float("nan"), 3.3e38])
    assert torch.equal(torch.isfinite(round_stochastically(odd, torch.arange(4), key=1)), torch.isfinite(odd))


def test_a_part_of_a_tensor_knows_its_elements_in_the_whole():
    whole = torch.arange(6 * 10).view(6, 10)
    ranges = (((1, 2), (4, 1)), ((0, 3), (7, 2)))
    part = torch.cat([torch.cat([whole[1:3, :3], whole[1:3, 7:9]], 1), torch.cat([whole[4:5, :3], whole[4:5, 7:9]], 1)])
    piece = Piece(name="w", tensor=part, global_shape=(6, 10), ranges=ranges)
    found = global_index(torch.arange(part.numel()), shape=part.shape, piece=piece)
    assert torch.equal(found.view(part.shape), part)


@pytest.mark.parametrize("fused", [True, False])
def test_steps_in_stretches_equal_the_plain_optimizer_bit_for_bit(fused):
    modules = TinyLM(), TinyLM()
    plain, inner = (torch.optim.AdamW(each.parameters(), lr=1e-2, fused=fused, foreach=False) for each in modules)
    chunked = ChunkedOptimizer(inner, chunk_numel=64)
    steppers = [
        make_stepper(each, optimizer=optimizer, clip_grad_norm=0.1)
        for each, optimizer in zip(modules, (plain, chunked), strict=True)
    ]
    for step in range(4):
        first, second = (stepper(make_batch(step)) for stepper in steppers)
        assert (first.loss, first.grad_norm) == (second.loss, second.grad_norm)
    one, other = (state_tensors(stepper) for stepper in steppers)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_other_optimizers_are_taken_apart_too_or_refused_by_name():
    modules = TinyLM(), TinyLM()
    plain, inner = (torch.optim.SGD(each.parameters(), lr=1e-2, momentum=0.9) for each in modules)
    chunked = ChunkedOptimizer(inner, chunk_numel=50)
    steppers = [make_stepper(each, optimizer=each_) for each, each_ in zip(modules, (plain, chunked), strict=True)]
    for step in range(3):
        assert len({stepper(make_batch(step)).loss for stepper in steppers}) == 1
    matrices = [p for p in TinyLM().parameters() if p.dim() == 2]
    with pytest.raises(LayoutError, match="Muon"):
        ChunkedOptimizer(torch.optim.Muon(matrices))
    with pytest.raises(LayoutError, match="has state already"):
        ChunkedOptimizer(plain)


def test_weights_that_somebody_else_writes_are_taken_over_by_the_copies():
    stepper = _stepper("bf16_master")
    stepper(make_batch(0))
    with torch.no_grad():
        stepper.module.norm.weight[3] = 7.0
    stepper(make_batch(1))
    assert abs(float(stepper.module.norm.weight.detach()[3]) - 7.0) < 0.1


def test_state_with_copies_can_be_given_to_another_optimizer():
    one, other = _stepper("bf16_master"), _stepper("bf16_master")
    for step in range(3):
        one(make_batch(step))
    other.module.load_state_dict(one.module.state_dict())
    other.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    first, second = one(make_batch(3)), other(make_batch(3))
    assert first.loss == second.loss
    assert all(torch.equal(a, b) for a, b in zip(one.module.parameters(), other.module.parameters(), strict=True))


def test_amp_03_accumulation_clips_and_unscales_once_a_step():
    whole, parts = (
        _stepper("fp16_master", clip_grad_norm=0.5),
        _stepper("fp16_master", microbatch_seqs=2, clip_grad_norm=0.5),
    )
    for step in range(2):
        first, second = whole(make_batch(step)), parts(make_batch(step))
        assert second.grad_norm == pytest.approx(first.grad_norm, rel=5e-3)
        assert second.loss == pytest.approx(first.loss, rel=1e-3)
    assert parts.counters.num_steps == 2
    assert parts.counters.num_skipped == 0


def test_a_skipped_step_uses_up_none_of_the_schedule():
    stepper = _stepper("fp16_master")
    stepper.scaler.scale = 2.0**40  # overflows until it has been halved often enough
    rates = []

    class Notes:
        def on_step(self, report):
            rates.append((report.lr, report.skipped, report.num_skipped))

        def on_eval(self, report): ...
        def on_sample(self, report): ...
        def on_event(self, event): ...

    plan = StepPlan(max_steps=40, global_batch_seqs=8, step_tokens=96)
    schedule = build_schedule(section(max_steps=40, warmup_steps=10, lr=1e-3), plan=plan)
    fit(make_pieces(stepper, plan=plan, schedule=schedule, observers=(Notes(),)))
    skipped = [rate for rate, is_skipped, _ in rates if is_skipped]
    updated = [rate for rate, is_skipped, _ in rates if not is_skipped]
    assert len(skipped) >= 5
    assert updated == [lr_at(step, schedule=schedule) for step in range(len(updated))]
    assert rates[-1][2] == len(skipped)


def test_the_gradient_norm_of_16_bit_gradients_is_summed_in_fp32():
    from trireme.train.optim import grad_norm

    parameters = [nn.Parameter(torch.zeros(4096, dtype=torch.float16)) for _ in range(4)]
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 300.0)
    norm = grad_norm(parameters)
    assert norm.dtype == torch.float32
    assert float(norm) == pytest.approx(300.0 * 128)


@pytest.mark.parametrize("policy", ["fp32", "bf16", "bf16_master", "bf16_pure"])
def test_amp_08_rotary_phases_are_exact_under_every_policy(policy):
    """Their tables are compared with float64 up to position 4096, and the rotation itself (AMP-09) in logits."""
    shape = {"num_layers": 1, "d_model": 32, "num_heads": 4, "num_kv_heads": 2, "d_ffn": 64, "max_seq_len": 4096}
    module = build_model(
        ModelSection.model_validate({"name": "llama-1m", **shape}), vocab_size=97, seq_len=4096, seed=0
    )
    apply_precision(module, precision=build_precision(policy, device=CPU))  # type: ignore[arg-type]
    table = module.rotary.table(CPU)
    width = table.shape[-1]
    rates = 1e4 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    phases = torch.outer(torch.arange(table.shape[1], dtype=torch.float64), rates)
    found = torch.atan2(table[1, :, width // 2 :].double(), table[0, :, : width // 2].double())
    error = torch.remainder(found - phases + torch.pi, 2 * torch.pi) - torch.pi
    assert float(error.abs().max()) < 0.01


def test_tf32_on_a_device_without_it_is_said():
    notices: list[str] = []
    build_precision("fp32", device=CPU, section=PrecisionSection(tf32=True), notice=notices.append)
    assert any("TF32" in text for text in notices)


def test_fp8_is_refused_where_the_device_or_torchao_is_missing(monkeypatch):
    with pytest.raises(DeviceError, match="fp8"):
        build_precision("fp8", device=CPU)
    monkeypatch.setattr("trireme.train.float8.find_spec", lambda name: None)
    monkeypatch.setattr(precision_file, "can_compute", lambda dtype, *, device: True)
    with pytest.raises(DeviceError, match="torchao"):
        apply_precision(TinyLM(), precision=build_precision("fp8", device=CPU))


def test_fp8_products_follow_fp32_ones_within_three_bits_of_mantissa():
    pytest.importorskip("torchao")
    shape = {"num_layers": 2, "d_model": 32, "num_heads": 2, "num_kv_heads": 2, "d_ffn": 64}
    plain = build_model(ModelSection.model_validate({"name": "llama-1m", **shape}), vocab_size=96, seq_len=16, seed=0)
    coarse = copy.deepcopy(plain)
    convert_linears(coarse, emulates=True)
    kinds = [type(layer).__name__ for layer in coarse.modules()]
    assert kinds.count("Float8Linear") == 14, "all but the layer that makes logits"
    ids = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(0))
    exact, found = plain(ids), coarse(ids)
    assert 0 < float((exact - found).norm() / exact.norm()) < 0.1
    found.square().mean().backward()
    assert all(each.grad is not None for each in coarse.parameters())
