"""Callbacks: when they are called, and what they can't do."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from tests.unit.train_pieces import TinyLM, make_batch, make_pieces, make_stepper
from trireme.errors import TrainError
from trireme.train import Cadence, Callback, CallbackState, Control, fit

MOMENTS = [name for name in dir(Callback) if name.startswith("on_")]


class Recording(Callback):
    """Notes each moment with the step it is called at."""

    def __init__(self) -> None:
        self.moments: list[tuple[str, int]] = []

    def __getattribute__(self, name: str):
        if name.startswith("on_"):
            return lambda args, state, control, **kwargs: self.moments.append((name[3:], state.global_step))
        return super().__getattribute__(name)


def test_each_moment_comes_in_order():
    recording = Recording()
    pieces = make_pieces(
        make_stepper(microbatch_seqs=4),
        callbacks=(recording,),
        cadence=Cadence(eval_every_steps=3, sample_every_steps=None, save_every_steps=None),
        eval_batches=lambda: [make_batch(99)],
        save=lambda snapshot: None,
    )
    fit(pieces)
    step = ["step_begin", "substep_end", "substep_end", "pre_optimizer_step", "optimizer_step", "step_end", "log"]
    names = [name for name, _ in recording.moments]
    assert names[:3] == ["init_end", "train_begin", "epoch_begin"]
    assert names[3:10] == step
    third = names.index("evaluate")
    assert names[third - 2 : third] == ["prediction_step", "prediction_step"]
    assert names[-2:] == ["save", "train_end"]
    assert names.count("step_end") == 6
    assert [s for name, s in recording.moments if name == "epoch_end"] == [4]
    assert [s for name, s in recording.moments if name == "epoch_begin"] == [0, 4]


def test_a_skipped_step_has_no_optimizer_moment():
    recording = Recording()
    module = TinyLM()
    module.embed.weight.register_hook(lambda grad: grad * float("nan"))
    pieces = make_pieces(make_stepper(module, max_nonfinite=100), callbacks=(recording,))
    fit(pieces)
    names = [name for name, _ in recording.moments]
    assert "optimizer_step" not in names
    assert names.count("step_end") == 6


def test_a_callback_may_ask_to_stop_save_and_evaluate():
    class Asking(Callback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_evaluate = state.step == 2
            control.should_save = state.step == 3
            control.should_stop = state.step == 4

    saved: list[tuple[int, str]] = []
    recording = Recording()
    pieces = make_pieces(
        make_stepper(),
        callbacks=(Asking(), recording),
        eval_batches=lambda: [make_batch(99)],
        save=lambda s: saved.append((s.step, s.reason)),
    )
    result = fit(pieces)
    assert (result.status, result.step) == ("stopped", 4)
    assert [s for name, s in recording.moments if name == "evaluate"] == [2]
    assert saved == [(3, "callback"), (4, "callback")]


def test_a_wish_made_at_an_evaluation_counts():
    class Enough(Callback):
        def on_evaluate(self, args, state, control, metrics, **kwargs):
            control.should_training_stop = metrics["eval_loss"] < 100

    cadence = Cadence(eval_every_steps=2, sample_every_steps=None, save_every_steps=None)
    pieces = make_pieces(make_stepper(), callbacks=(Enough(),), cadence=cadence, eval_batches=lambda: [make_batch(99)])
    assert fit(pieces).step == 2


def test_state_is_read_only():
    state = CallbackState(
        global_step=1, max_steps=2, epoch=0.5, num_input_tokens_seen=3, best_metric=None, best_global_step=None
    )
    with pytest.raises(FrozenInstanceError):
        state.global_step = 5  # type: ignore[misc]


@pytest.mark.parametrize(("name", "value"), [("should_log", True), ("lr", 0.1), ("should_stop", 1)])
def test_control_takes_three_wishes_and_nothing_else(name, value):
    with pytest.raises(TrainError, match="should_evaluate"):
        setattr(Control(), name, value)


def test_hugging_faces_stop_means_ours():
    control = Control()
    control.should_training_stop = True
    assert control.should_stop
    assert control.should_training_stop


def test_a_callback_of_transformers_works_as_it_is():
    transformers = pytest.importorskip("transformers")

    class Theirs(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                control.should_training_stop = True
            return control

    assert fit(make_pieces(make_stepper(), callbacks=(Theirs(),))).step == 2


def test_the_names_are_hugging_faces():
    transformers = pytest.importorskip("transformers")
    assert set(MOMENTS) - {name for name in dir(transformers.TrainerCallback) if name.startswith("on_")} == set()
