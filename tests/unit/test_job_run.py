"""``trireme.run``: modules given as objects, callbacks, observers, what is refused before step 1."""

from __future__ import annotations

import copy
import sys
import types

import pytest
import torch
from torch import nn

import trireme
from tests.cli.train_command import SETTINGS, lay_out, lines_of, steps_of, texts_of
from trireme.cli import main
from trireme.errors import ConfigError, ModelError, TrainError, TriremeError


@pytest.fixture
def settings(tmp_path, monkeypatch):
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = copy.deepcopy(SETTINGS)
    settings["run"] = {"dir": "out"}
    return settings


class Bigram(nn.Module):
    """Sees one token, so packing can't mix documents up."""

    def __init__(self, vocab_size: int = 320) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.table(input_ids)


class Recurrent(nn.Module):
    """Carries what it read over the border of documents."""

    def __init__(self, vocab_size: int = 320) -> None:
        super().__init__()
        self.table, self.cell, self.head = (
            nn.Embedding(vocab_size, 8),
            nn.GRU(8, 8, batch_first=True),
            nn.Linear(8, vocab_size),
        )

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.cell(self.table(input_ids))[0])


def _without_model(settings):
    return {name: section for name, section in settings.items() if name != "model"}


def test_a_module_given_as_an_object_trains_and_resumes(settings):
    settings = _without_model(settings)
    result = trireme.run(settings, "train.max_steps=4", module=_seeded(Bigram))
    assert (result.status, result.step) == ("finished", 4)
    result = trireme.run(settings, module=_seeded(Bigram), resume=True, extend="stretch")
    assert (result.status, result.step) == ("finished", 6)
    assert [step[0] for step in steps_of_path("out")] == [1, 2, 3, 4, 5, 6]


def steps_of_path(name):
    from pathlib import Path

    return steps_of(Path(name))


def _seeded(kind):
    torch.manual_seed(0)
    return kind()


def test_an_estimate_without_activations_is_called_the_least_and_not_compared_at_the_end(settings, capsys):
    trireme.run(_without_model(settings), module=Bigram())
    shown = capsys.readouterr().out
    assert "what Bigram keeps for its backward pass is not estimated" in shown
    assert "predicted, " not in "".join(line for line in shown.splitlines() if line.strip().startswith("memory"))
    trireme.run(settings, overwrite=True)
    shown = capsys.readouterr().out
    assert "is not estimated" not in shown
    assert any("predicted, " in line for line in shown.splitlines() if line.strip().startswith("memory"))


def test_a_loss_of_ones_own_is_what_is_trained(settings):
    def double(outputs, batch):
        loss_sum = nn.functional.cross_entropy(
            outputs.flatten(0, 1), batch["labels"].flatten().long(), ignore_index=-100, reduction="sum"
        )
        return 2 * loss_sum, int((batch["labels"] != -100).sum())

    settings = _without_model(settings)
    plain = trireme.run(settings, "run.dir=plain", module=_seeded(Bigram))
    twice = trireme.run(settings, "run.dir=twice", module=_seeded(Bigram), loss_fn=double)
    assert plain.status == twice.status == "finished"
    assert steps_of_path("twice")[0][1] == pytest.approx(2 * steps_of_path("plain")[0][1], rel=1e-6)


def test_a_module_that_mixes_documents_up_is_refused_under_isolation_only(settings):
    with pytest.raises(ModelError, match="packing"):
        trireme.run(_without_model(settings), module=Recurrent())
    assert trireme.run(_without_model(settings), "data.packing=none", module=Recurrent(), overwrite=True).step == 6


def test_a_factory_is_trained_and_written_with(settings, monkeypatch):
    module = types.ModuleType("bench_models")
    module.build = lambda vocab_size: Bigram(vocab_size)
    module.mixer = lambda vocab_size: Recurrent(vocab_size)
    monkeypatch.setitem(sys.modules, "bench_models", module)
    settings["model"] = {"factory": "bench_models:build", "factory_args": {"vocab_size": 320}}
    assert trireme.run(settings).status == "finished"
    loaded = trireme.load("out")
    assert loaded.step == 6
    settings["model"]["factory"] = "bench_models:mixer"
    with pytest.raises(ModelError, match="packing"):
        trireme.run(settings, "run.dir=mixed")


@pytest.mark.parametrize("kind", [Bigram, Recurrent])
def test_a_module_smaller_than_the_vocabulary_is_refused_with_both_numbers(settings, kind):
    with pytest.raises(ModelError, match=r"300.*"):
        trireme.run(_without_model(settings), module=kind(299))


class Diary(trireme.Callback):
    def __init__(self):
        self.moments = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.moments.append(("begin", state.global_step))

    def on_evaluate(self, args, state, control, metrics, **kwargs):
        self.moments.append(("evaluate", state.global_step))
        assert metrics["eval_loss"] > 0

    def on_save(self, args, state, control, **kwargs):
        self.moments.append(("save", state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        self.moments.append(("end", state.global_step))


def test_callbacks_hear_of_each_moment_in_order(settings):
    diary = Diary()
    trireme.run(settings, callbacks=[diary])
    moments = [moment for moment in diary.moments if moment[0] != "save"]
    assert moments == [("begin", 0), ("evaluate", 3), ("evaluate", 6), ("end", 6)]
    # A save is told when it is durable, which may be a few steps later; the last one before the end.
    assert [name for name, _ in diary.moments].count("save") == 3
    assert diary.moments[-2:] == [("save", 6), ("end", 6)]


def test_a_callback_stops_the_run_which_then_goes_on(settings):
    class Stop(trireme.Callback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_stop = state.global_step == 3

    result = trireme.run(settings, callbacks=[Stop()])
    assert (result.status, result.step) == ("stopped", 3)
    result = trireme.run(settings, resume=True)
    assert (result.status, result.step) == ("finished", 6)


def test_a_callback_of_transformers_works_as_it_is(settings):
    transformers = pytest.importorskip("transformers")

    class Stopping(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            self.last = logs["loss"]

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 2:
                control.should_training_stop = True
            return control

    callback = Stopping()
    result = trireme.run(settings, callbacks=[callback])
    assert (result.status, result.step) == ("stopped", 2)
    assert callback.last == lines_of_path("out/log.jsonl")[-1]["loss"]


def lines_of_path(name):
    from pathlib import Path

    return lines_of(Path(name))


def test_a_callback_that_fails_is_not_swallowed(settings):
    class Broken(trireme.Callback):
        def on_step_end(self, args, state, control, **kwargs):
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        trireme.run(settings, callbacks=[Broken()])


def test_los_04_a_loss_of_exactly_zero_stops_before_anything_is_learned(settings):
    def nothing(outputs, batch):
        return outputs.sum() * 0.0, int((batch["labels"] != -100).sum())

    with pytest.raises(TrainError, match="exactly 0"):
        trireme.run(_without_model(settings), module=Bigram(), loss_fn=nothing)


def test_a_mean_without_its_name_is_refused(settings):
    def mean(outputs, batch):
        return nn.functional.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten().long())

    with pytest.raises(TrainError, match="loss_reduction"):
        trireme.run(_without_model(settings), module=Bigram(), loss_fn=mean)


def test_a_module_with_nothing_to_train_is_refused(settings):
    module = Bigram()
    module.requires_grad_(False)
    with pytest.raises(TriremeError, match="requires a gradient"):
        trireme.run(_without_model(settings), module=module)


def test_threads_are_those_asked_for(settings):
    trireme.run(settings, "train.num_threads=2")
    try:
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_resume_and_overwrite_together_are_refused(settings):
    trireme.run(settings)
    with pytest.raises(ConfigError, match="overwrite"):
        trireme.run(settings, resume=True, overwrite=True)


def test_an_evaluation_on_the_smallest_set_is_that_of_its_tokens(settings):
    settings["data"]["eval_fraction"] = 0.01
    result = trireme.run(settings, "train.eval_seqs=1")
    assert result.best_loss is not None
    assert {fields["num_seqs"] for fields in lines_of_path("out/evals.jsonl")} == {1}


def test_a_run_tells_of_its_wishes_in_events(settings):
    from pathlib import Path

    trireme.run(settings, "data.tokenizer_vocab_size=5000")
    assert "fewer than the 5000 asked" in texts_of(Path("out"))


def test_the_next_commands_are_ones_that_work(settings, capsys):
    trireme.run(settings, "train.max_steps=4")
    output = capsys.readouterr().out
    assert "trireme train out --resume train.max_steps=8 --extend stretch" in output
    assert main(["train", "out", "--resume", "train.max_steps=8", "--extend", "stretch"]) == 0
    assert len(steps_of_path("out")) == 8
    capsys.readouterr()
    trireme.run(_without_model(settings), "run.dir=module", module=Bigram())
    output = capsys.readouterr().out
    assert "trireme train" not in output
    assert "trireme generate" not in output
