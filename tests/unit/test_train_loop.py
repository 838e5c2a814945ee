"""The loop: what happens after which step, how it ends, and that it goes on bit for bit."""

from __future__ import annotations

import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.unit.train_pieces import (
    SEQ_LEN,
    TinyLM,
    loss_fn,
    make_batch,
    make_pieces,
    make_stepper,
    open_batches,
    section,
)
from trireme.checkpoint import Checkpoint, find_nonfinite, list_checkpoints, open_checkpoint, save_checkpoint
from trireme.errors import CheckpointError, TrainError
from trireme.observe import EvalReport, Event, SampleReport, StepReport, Watcher
from trireme.train import (
    Cadence,
    Callback,
    Precision,
    Snapshot,
    StepPlan,
    apply_precision,
    build_cadence,
    build_schedule,
    fit,
    state_tensors,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "tiny_loss_cpu_fp32.json"
SAME_ON_ANOTHER_CPU = 2e-5
"""Vector width and library decide the order of sums."""


class Witness(Watcher):
    """Keeps all it is told."""

    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.evals: list[EvalReport] = []
        self.events: list[Event] = []
        self.samples: list[SampleReport] = []

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)

    def on_eval(self, report: EvalReport) -> None:
        self.evals.append(report)

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_sample(self, report: SampleReport) -> None:
        self.samples.append(report)


def _saver(root: Path):
    def save(snapshot: Snapshot) -> Path:
        return save_checkpoint(
            root, step=snapshot.step, tensors=snapshot.tensors, state=snapshot.state, metrics=snapshot.metrics
        )

    return save


def _every(*, evaluation: int | None = None, sample: int | None = None, save: int | None = None) -> Cadence:
    return Cadence(eval_every_steps=evaluation, sample_every_steps=sample, save_every_steps=save)


def _stepper(policy: str, *, dropout: float = 0.1, seed: int = 0, **keys: Any):
    precision = Precision(policy=policy, device=torch.device("cpu"), init_loss_scale=2.0**18)  # type: ignore[arg-type]
    module = apply_precision(TinyLM(seed=seed, dropout=dropout), precision=precision)
    return make_stepper(module, precision=precision, **keys)


class Drawing(Callback):
    """Draws from Python's and numpy's generators at each step, as user code may."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, float]] = []

    def on_step_end(self, args, state, control, **kwargs):
        self.drawn.append((random.random(), float(np.random.rand())))


def _bits(stepper) -> dict[str, bytes]:
    return {
        name: t.detach().contiguous().view(torch.uint8).numpy().tobytes() if t.dim() else repr(t.item()).encode()
        for name, t in state_tensors(stepper).items()
    }


@pytest.mark.parametrize("policy", ["fp32", "bf16", "fp16", "bf16_pure", "bf16_master", "fp16_master"])
def test_six_steps_equal_three_and_three_after_a_resume_bit_for_bit(policy, tmp_path):
    """With dropout, fp16 overflowing at first, evaluation in between and a callback that draws numbers."""
    whole, witness, draws = _stepper(policy, microbatch_seqs=4), Witness(), Drawing()
    held_out = {"eval_batches": lambda: [make_batch(99)]}
    fit(make_pieces(whole, observers=(witness,), callbacks=(draws,), cadence=_every(evaluation=2), **held_out))

    save = {"save": _saver(tmp_path), "cadence": _every(evaluation=2, save=3)}

    class StopAtThree(Callback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 3

    first, first_draws = _stepper(policy, microbatch_seqs=4), Drawing()
    result = fit(make_pieces(first, callbacks=(first_draws, StopAtThree()), **save, **held_out))
    assert (result.status, result.step, result.exit_code) == ("stopped", 3, 0)

    random.seed(1), np.random.seed(2), torch.manual_seed(3)
    second, later, later_draws = _stepper(policy, seed=9, microbatch_seqs=4), Witness(), Drawing()
    pieces = make_pieces(second, observers=(later,), callbacks=(later_draws,), **save, **held_out)
    result = fit(pieces, resume=open_checkpoint(tmp_path / "step-3"))
    assert (result.status, result.step, result.exact) == ("finished", 6, True)
    assert _bits(second) == _bits(whole)
    facts = [(r.step, r.loss, r.grad_norm, r.lr, r.tokens, r.loss_scale, r.num_skipped) for r in witness.steps]
    assert facts[3:] == [
        (r.step, r.loss, r.grad_norm, r.lr, r.tokens, r.loss_scale, r.num_skipped) for r in later.steps
    ]
    assert [e.loss for e in witness.evals][1:] == [e.loss for e in later.evals]
    assert draws.drawn == first_draws.drawn + later_draws.drawn
    assert second.counters == whole.counters


def test_dropout_matters_to_the_test_above():
    losses = []
    for dropout in (0.0, 0.1):
        witness = Witness()
        fit(make_pieces(_stepper("fp32", dropout=dropout), observers=(witness,)))
        losses.append([r.loss for r in witness.steps])
    assert losses[0] != losses[1]


def test_evaluation_does_not_shift_training():
    losses = []
    for every in (None, 1):
        witness = Witness()
        pieces = make_pieces(
            _stepper("fp32"),
            observers=(witness,),
            cadence=_every(evaluation=every),
            eval_batches=lambda: [make_batch(99)],
        )
        fit(pieces)
        losses.append([r.loss for r in witness.steps])
    assert losses[0] == losses[1]


def test_the_losses_are_those_of_the_golden_file():
    witness = Witness()
    settings = section(max_steps=10)
    stepper = make_stepper(TinyLM(dropout=0.0), settings=settings, microbatch_seqs=3)
    fit(make_pieces(stepper, settings=settings, observers=(witness,)))
    golden = json.loads(GOLDEN.read_text())
    assert [r.loss for r in witness.steps] == pytest.approx(golden["loss"], rel=SAME_ON_ANOTHER_CPU)
    assert [r.grad_norm for r in witness.steps] == pytest.approx(golden["grad_norm"], rel=10 * SAME_ON_ANOTHER_CPU)
    assert [r.lr for r in witness.steps] == pytest.approx(golden["lr"], rel=1e-12)


def _saved(tmp_path: Path, policy: str = "fp32") -> Checkpoint:
    settings = section(max_steps=2)
    fit(make_pieces(_stepper(policy), settings=settings, save=_saver(tmp_path)))
    return open_checkpoint(tmp_path / "step-2")


def _resume(checkpoint: Checkpoint, *, stepper=None, **keys: Any):
    return fit(make_pieces(stepper or _stepper("fp32"), **keys), resume=checkpoint)


def _with_state(checkpoint: Checkpoint, root: Path, **changes: Any) -> Checkpoint:
    state = {**checkpoint.state, **changes}
    tensors = {name: checkpoint.tensor(name) for name in checkpoint.names}
    tensors["model/head.weight"] = tensors["model/embed.weight"]
    save_checkpoint(root, step=2, tensors=tensors, state={k: v for k, v in state.items() if v is not ...})
    return open_checkpoint(root / "step-2")


def test_ckp_04_moments_and_step_counters_are_there_before_any_step(tmp_path):
    class Looking(Callback):
        def on_train_begin(self, args, state, control, **kwargs):
            states = list(stepper.optimizer.state.values())
            assert len(states) == len(list(stepper.module.parameters()))
            seen.extend(float(s["step"]) for s in states)
            assert all(float(s["exp_avg"].abs().sum()) > 0 for s in states)

    seen: list[float] = []
    stepper = _stepper("fp32", seed=3)
    _resume(_saved(tmp_path), stepper=stepper, callbacks=(Looking(),))
    assert set(seen) == {2.0}


def test_ckp_04_an_entry_nobody_claims_is_named(tmp_path):
    saved = _saved(tmp_path / "a")
    with pytest.raises(CheckpointError, match="curriculum"):
        _resume(_with_state(saved, tmp_path / "b", curriculum={"stage": 2}))


def test_ckp_04_a_tensor_nobody_claims_is_named(tmp_path):
    saved = _saved(tmp_path / "a")
    tensors = {name: saved.tensor(name) for name in saved.names}
    tensors["model/head.weight"] = tensors["model/embed.weight"]
    tensors["model/adapter.weight"] = torch.zeros(2)
    save_checkpoint(tmp_path / "b", step=2, tensors=tensors, state=saved.state)
    with pytest.raises(CheckpointError, match=r"adapter\.weight"):
        _resume(open_checkpoint(tmp_path / "b" / "step-2"))


@pytest.mark.parametrize("key", ["scaler", "schedule", "optimizer", "data", "progress", "rng"])
def test_ckp_04_a_component_that_got_nothing_is_named(tmp_path, key):
    saved = _saved(tmp_path / "a")
    with pytest.raises(CheckpointError, match=key if key != "rng" else "rank 0"):
        _resume(_with_state(saved, tmp_path / "b", **{key: ...}))


def test_ckp_04_missing_moments_are_named(tmp_path):
    saved = _saved(tmp_path / "a")
    tensors = {name: saved.tensor(name) for name in saved.names if "norm.weight/exp_avg_sq" not in name}
    tensors["model/head.weight"] = tensors["model/embed.weight"]
    save_checkpoint(tmp_path / "b", step=2, tensors=tensors, state=saved.state)
    with pytest.raises(CheckpointError, match="exp_avg_sq"):
        _resume(open_checkpoint(tmp_path / "b" / "step-2"))


def _damaged(rng: dict[str, Any], part: str) -> dict[str, Any]:
    if part == "torch":
        return {**rng, "torch": {"cpu": rng["torch"]["cpu"][:100]}}
    return {**rng, part: rng[part][:1]}


@pytest.mark.parametrize("part", ["python", "numpy", "torch"])
def test_ckp_36_a_damaged_random_state_stops_the_resume_and_is_named(tmp_path, part):
    saved = _saved(tmp_path / "a")
    broken = _with_state(saved, tmp_path / "b", rng=_damaged(saved.state["rng"], part))
    with pytest.raises(CheckpointError, match=f"`{part}` of rank 0"):
        _resume(broken)


def test_ckp_36_with_leave_to_miss_it_the_resume_is_marked_as_not_exact(tmp_path):
    saved = _saved(tmp_path / "a")
    broken = _with_state(saved, tmp_path / "b", rng=_damaged(saved.state["rng"], "torch"))
    witness = Witness()
    result = _resume(broken, observers=(witness,), allow_missing={"rng"})
    assert result.exact is False
    (event,) = [e for e in witness.events if e.kind == "resume"]
    assert event.level == "warning"
    assert event.data["missing"] == ("rng",)


def test_another_precision_is_not_the_same_run(tmp_path):
    with pytest.raises(CheckpointError, match="fp32"):
        _resume(_saved(tmp_path), stepper=_stepper("fp16"))


def test_a_finished_run_says_so_and_reads_no_data(tmp_path):
    def no_data(first, last):
        raise AssertionError("opened the data")

    settings = section(max_steps=2)
    saved = _saved(tmp_path)
    result = fit(make_pieces(_stepper("fp32"), settings=settings, open_loader=no_data), resume=saved)
    assert (result.status, result.step) == ("already_finished", 2)


def test_other_data_is_refused_before_anything_is_restored(tmp_path):
    def check(state):
        raise CheckpointError("train.state_unclaimed", names=str(state))

    saved = _with_state(_saved(tmp_path / "a"), tmp_path / "b", data={"position": 2})
    with pytest.raises(CheckpointError, match="'position': 2"):
        _resume(saved, check_data_state=check)


def test_saves_come_at_their_steps_at_the_end_and_once_a_step(tmp_path):
    reasons: list[tuple[int, str]] = []
    pieces = make_pieces(_stepper("fp32"), cadence=_every(save=2), save=lambda s: reasons.append((s.step, s.reason)))
    fit(pieces)
    assert reasons == [(2, "cadence"), (4, "cadence"), (6, "end")]


def test_the_evaluation_of_a_step_goes_into_its_checkpoint_and_the_best_is_marked(tmp_path):
    witness = Witness()
    pieces = make_pieces(
        _stepper("fp32"),
        observers=(witness,),
        cadence=_every(evaluation=2, save=3),
        save=_saver(tmp_path),
        eval_batches=lambda: [make_batch(99)],
    )
    result = fit(pieces)
    assert [e.step for e in witness.evals] == [2, 4, 6]
    metrics = {info.step: info.manifest.metrics for info in list_checkpoints(tmp_path)}
    assert metrics[3] == {}
    assert metrics[6] == {"eval_loss": witness.evals[-1].loss}
    best = min(witness.evals, key=lambda e: e.loss)
    assert (result.best_loss, result.best_step) == (best.loss, best.step)
    assert witness.evals[0].is_best


def test_samples_are_written_in_evaluation_mode():
    modes: list[bool] = []

    def sample(step: int):
        modes.append(stepper.module.training)
        yield SampleReport(step=step, prompt="", text="明月", num_tokens=1, temperature=0.8, seed=0)

    stepper, witness = _stepper("fp32"), Witness()
    fit(make_pieces(stepper, observers=(witness,), cadence=_every(sample=3), sample=sample))
    assert [s.step for s in witness.samples] == [3, 6]
    assert modes == [False, False]
    assert stepper.module.training


def test_reports_count_steps_from_one_and_tokens_from_the_start():
    witness = Witness()
    fit(make_pieces(_stepper("fp32"), observers=(witness,), flops_per_token=10.0, peak_flops_per_s=1e12))
    assert [r.step for r in witness.steps] == [1, 2, 3, 4, 5, 6]
    assert [r.tokens for r in witness.steps] == [8 * SEQ_LEN * n for n in range(1, 7)]
    assert witness.steps[0].flops == 10.0 * 8 * SEQ_LEN
    assert witness.steps[3].epoch == 1.0
    assert witness.steps[-1].max_steps == 6
    assert witness.steps[0].memory_bytes


def test_los_09_the_last_step_of_a_run_in_epochs_takes_only_what_is_left():
    """LOS-09: planned steps are performed, and each sample is used exactly twice."""
    used: list[int] = []

    class Counting(Callback):
        def on_step_end(self, args, state, control, result, **kwargs):
            used.extend(result.sample_ids)

    def loader(first, last):
        batches = [make_batch(step) for step in range(first, last)]
        wrapped = [replace(batch, sample_ids=batch.sample_ids % 10) for batch in batches]
        return open_batches(0, 0).__class__(wrapped)

    settings = section(max_steps=3)
    plan = StepPlan(max_steps=3, global_batch_seqs=8, step_tokens=8 * SEQ_LEN, max_samples=20)
    pieces = make_pieces(
        _stepper("fp32"),
        settings=settings,
        plan=plan,
        schedule=build_schedule(settings, plan=plan),
        open_loader=loader,
        samples_per_epoch=10,
        callbacks=(Counting(),),
    )
    result = fit(pieces)
    assert (result.status, result.step) == ("finished", 3)
    assert sorted(used) == sorted([*range(10)] * 2)
    assert result.tokens == 20 * SEQ_LEN


def test_a_run_in_epochs_can_not_go_on_after_its_short_last_step(tmp_path):
    """Or the samples that step left out would never be used."""
    settings = section(max_steps=3)
    plan = StepPlan(max_steps=3, global_batch_seqs=8, step_tokens=8 * SEQ_LEN, max_samples=20)
    fit(make_pieces(_stepper("fp32"), settings=settings, plan=plan, save=_saver(tmp_path)))
    longer = StepPlan(max_steps=5, global_batch_seqs=8, step_tokens=8 * SEQ_LEN, max_samples=40)
    with pytest.raises(CheckpointError, match="4 samples"):
        fit(make_pieces(_stepper("fp32"), plan=longer), resume=open_checkpoint(tmp_path / "step-3"))


class Poison:
    """A loss that is NaN from some call on."""

    def __init__(self, first: int) -> None:
        self.calls, self.first = 0, first

    def __call__(self, outputs, batch):
        loss_sum, count = loss_fn(outputs, batch)
        self.calls += 1
        return loss_sum * (float("nan") if self.calls >= self.first else 1.0), count


def test_mon_09_the_run_stops_at_the_limit_and_its_last_checkpoint_is_finite(tmp_path):
    witness = Witness()
    settings = section(max_steps=20)
    stepper = make_stepper(TinyLM(), settings=settings, loss_fn=Poison(4))
    pieces = make_pieces(
        stepper, settings=settings, observers=(witness,), cadence=_every(save=1), save=_saver(tmp_path)
    )
    with pytest.raises(TrainError, match="3 steps in a row") as error:
        fit(pieces)
    assert error.value.exit_code != 0
    events = [e for e in witness.events if e.kind == "nonfinite"]
    assert [e.data["nonfinite_in_row"] for e in events] == [1, 2, 3]
    assert events[0].data["sample_ids"] == list(range(24, 32))
    assert [r.skipped for r in witness.steps] == [False] * 3 + [True] * 3
    for info in list_checkpoints(tmp_path):
        assert find_nonfinite(open_checkpoint(info.path)) == ()


def test_mon_09_a_nan_state_never_becomes_a_checkpoint(tmp_path):
    class Spoiling(Callback):
        def on_step_end(self, args, state, control, **kwargs):
            with torch.no_grad():
                stepper.module.embed.weight[0, 0] = float("nan")

    stepper = _stepper("fp32")
    with pytest.raises(TrainError, match=r"model/embed\.weight"):
        fit(make_pieces(stepper, callbacks=(Spoiling(),), cadence=_every(save=1), save=_saver(tmp_path)))
    assert list_checkpoints(tmp_path) == []


def test_los_04_a_step_without_targets_warns_once_with_its_sample_ids():
    def loader(first, last):
        batches = [make_batch(step, answers=(0,) * 8 if step == 2 else ()) for step in range(first, last)]
        return open_batches(0, 0).__class__(batches)

    witness = Witness()
    fit(make_pieces(_stepper("fp32"), observers=(witness,), open_loader=loader))
    (event,) = [e for e in witness.events if e.kind == "empty"]
    assert (event.level, event.step, event.data["sample_ids"]) == ("warning", 3, list(range(16, 24)))


class Signalling(Callback):
    """Sends this process signals at the end of step 2's backward."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def on_substep_end(self, args, state, control, **kwargs):
        if state.global_step == 1:
            for number in self.numbers:
                os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_finishes_the_step_and_saves(tmp_path, number, exit_code):
    witness = Witness()
    before = signal.getsignal(number)
    pieces = make_pieces(
        _stepper("fp32"),
        observers=(witness,),
        callbacks=(Signalling(number),),
        save=_saver(tmp_path),
    )
    result = fit(pieces)
    assert (result.status, result.step, result.exit_code) == ("interrupted", 2, exit_code)
    assert open_checkpoint(tmp_path / "step-2").step == 2
    assert "Interrupted after step 2" in witness.events[-1].text
    assert signal.getsignal(number) is before


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    pieces = make_pieces(_stepper("fp32"), callbacks=(Signalling(signal.SIGINT, signal.SIGINT),), save=_saver(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        fit(pieces)
    assert list_checkpoints(tmp_path) == []


def test_data_that_ends_too_early_is_an_error():
    pieces = make_pieces(_stepper("fp32"), open_loader=lambda first, last: open_batches(first, 2))
    with pytest.raises(TrainError, match="step 2 of 6"):
        fit(pieces)


def test_a_batch_of_another_step_is_an_error():
    pieces = make_pieces(_stepper("fp32"), open_loader=lambda first, last: open_batches(1, last))
    with pytest.raises(TrainError, match="step 1"):
        fit(pieces)


def test_the_default_cadence_is_ten_times_a_run_with_samples_and_checkpoints():
    from trireme.config import CheckpointSection

    cadence = build_cadence(section(max_steps=95), CheckpointSection(), max_steps=95)
    assert cadence == Cadence(eval_every_steps=10, sample_every_steps=10, save_every_steps=10)
    own = build_cadence(section(eval_every_steps=7), CheckpointSection(every_steps=3), max_steps=95)
    assert own == Cadence(eval_every_steps=7, sample_every_steps=7, save_every_steps=3)


def test_a_save_that_failed_is_no_save_to_a_callback():
    class Counting(Callback):
        saves = 0

        def on_save(self, args, state, control, **kwargs):
            self.saves += 1

    told = Counting()
    cadence = Cadence(eval_every_steps=None, sample_every_steps=None, save_every_steps=2)
    answers = iter([False, True, True])
    pieces = make_pieces(_stepper("fp32"), cadence=cadence, callbacks=(told,), save=lambda snapshot: next(answers))
    assert fit(pieces).status == "finished"
    assert told.saves == 2
