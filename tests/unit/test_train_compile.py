"""torch.compile: in place, names unchanged, a clear word where it can't work."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.unit.train_pieces import CPU, Block, TinyLM, call, loss_fn, make_batch, make_pieces, make_stepper
from trireme.errors import DeviceError
from trireme.train import (
    Objective,
    Precision,
    apply_compile,
    check_compile,
    choose_compile,
    fit,
    remove_compile,
    state_tensors,
)
from trireme.train import compile as compile_file

OBJECTIVE = Objective(loss_fn=loss_fn, call=call)
FP32 = Precision(policy="fp32", device=CPU)
SAME = 1e-5
"""A compiler adds up in another order."""


@pytest.fixture
def fake_backend(monkeypatch):
    """Dynamo without a code generator: what is tested is ours, and it takes seconds less."""
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: original(self, backend="eager"))
    yield
    torch.compiler.reset()


def test_blocks_are_what_is_compiled():
    blocks = compile_file.blocks_of(TinyLM())
    assert [type(block) for block in blocks] == [Block, Block]
    module = nn.Linear(2, 2)
    assert compile_file.blocks_of(module) == [module]


@pytest.mark.usefixtures("fake_backend")
def test_names_weights_and_losses_stay_as_they_are():
    plain, compiled = make_stepper(TinyLM()), make_stepper(apply_compile(TinyLM()))
    assert list(state_tensors(plain)) == list(state_tensors(compiled))
    for step in range(3):
        one, other = plain(make_batch(step)), compiled(make_batch(step))
        assert other.loss == pytest.approx(one.loss, rel=SAME)
    assert list(state_tensors(plain)) == list(state_tensors(compiled))


@pytest.mark.usefixtures("fake_backend")
def test_a_whole_run_with_samples_works_compiled():
    def sample(step):
        call(stepper.module, {"input_ids": torch.zeros(1, step + 1, dtype=torch.long)})
        return ()

    stepper = make_stepper(apply_compile(TinyLM()))
    from trireme.train import Cadence

    cadence = Cadence(eval_every_steps=2, sample_every_steps=2, save_every_steps=None)
    pieces = make_pieces(stepper, cadence=cadence, sample=sample, eval_batches=lambda: [make_batch(9)])
    assert fit(pieces).status == "finished"


def test_a_machine_that_can_not_compile_says_what_is_missing(monkeypatch):
    def broken(self):
        def fail(*args, **kwargs):
            raise RuntimeError("wrapped") from FileNotFoundError("No working C++ compiler found")

        self._compiled_call_impl = fail

    monkeypatch.setattr(nn.Module, "compile", broken)
    with pytest.raises(DeviceError, match="No working C") as error:
        check_compile(apply_compile(TinyLM()), make_batch(0), objective=OBJECTIVE, precision=FP32)
    assert "\n" not in str(error.value)
    module = TinyLM()
    decision = choose_compile(module, make_batch(0), objective=OBJECTIVE, precision=FP32, planned_microbatches=10)
    assert (decision.choice, decision.reason) == ("off", "no_compiler")
    assert all(block._compiled_call_impl is None for block in module.blocks)


@pytest.mark.parametrize(
    ("eager_s", "compiled_s", "compile_s", "expected"),
    [
        (1.0, 0.5, 10.0, ("on", "faster")),
        (1.0, 0.99, 10.0, ("off", "no_gain")),
        (1.0, 0.5, 1000.0, ("off", "run_too_short")),
    ],
)
@pytest.mark.usefixtures("fake_backend")
def test_auto_compiles_only_where_the_planned_run_ends_earlier(monkeypatch, eager_s, compiled_s, compile_s, expected):
    times = {"eager": eager_s, "compiled": compiled_s}
    monkeypatch.setattr(compile_file, "fastest_of", lambda trials, *, device: {n: times[n] for n in trials})
    monkeypatch.setattr(compile_file, "_first_run_s", lambda run, *, precision: compile_s)
    module = TinyLM()
    decision = choose_compile(module, make_batch(0), objective=OBJECTIVE, precision=FP32, planned_microbatches=100)
    assert (decision.choice, decision.reason) == expected
    compiled = module.blocks[0]._compiled_call_impl is not None
    assert compiled == (decision.choice == "on")


@pytest.mark.usefixtures("fake_backend")
def test_compilation_can_be_taken_back():
    module = remove_compile(apply_compile(TinyLM()))
    assert all(block._compiled_call_impl is None for block in module.blocks)
