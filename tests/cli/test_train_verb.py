"""``trireme train`` as a person meets it: what it writes, refuses and survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.train_command import fingerprint, lines_of, make_bench, step_folders, steps_of, texts_of
from trireme.testing.faults import start_run, wait_for_step

FILES = {
    "config.yaml",
    "config_origins.json",
    "environment.json",
    "data_report.json",
    "log.jsonl",
    "evals.jsonl",
    "events.jsonl",
    "samples.jsonl",
    "samples.md",
    "loss.png",
    "run.json",
    "run.lock",
    "tokenizer",
    "checkpoints",
}
"""What docs/guide says a run folder holds, but for ``decisions.json``: nothing was measured."""


@pytest.fixture
def bench(tmp_path, capsys, monkeypatch):
    return make_bench(tmp_path, capsys, monkeypatch)


def test_a_fresh_run_writes_every_file_of_the_run_folder(bench):
    answer = bench.train("observe.plot=true", "train.sample_prompts=[明月]")
    assert answer.exit_code == 0, answer.errors
    assert answer.errors == ""
    run = bench.path / "runs/run"
    assert {path.name for path in run.iterdir()} == FILES
    assert all(path.stat().st_size for path in run.iterdir() if path.name != "run.lock")
    assert step_folders(run) == ["step-2", "step-4", "step-6"]
    assert [fields["step"] for fields in lines_of(run / "log.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert json.loads((run / "run.json").read_text())["status"] == "finished"


def test_a_run_in_a_path_with_spaces_and_chinese_gives_commands_that_can_be_typed(bench):
    folder = "runs/宋 词's"
    answer = bench.train(f"run.dir={folder}")
    assert answer.exit_code == 0, answer.errors
    lines = [line for line in answer.output.splitlines() if "  trireme " in line]
    assert len(lines) == 4
    shell = ["bash", "-c", 'printf "%s\\n" ' + lines[0].partition("trireme ")[2]]
    assert folder in subprocess.run(shell, capture_output=True, text=True, check=True).stdout.splitlines()
    extend = next(line for line in lines if "--extend" in line).partition("trireme ")[2]
    words = subprocess.run(["bash", "-c", f'printf "%s\\n" {extend}'], capture_output=True, text=True, check=True)
    again = bench.type(*words.stdout.splitlines())
    assert again.exit_code == 0, again.errors
    assert len(steps_of(bench.path / folder)) == 12


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(bench, number, exit_code):
    words = ("run.dir=cut", "train.max_steps=2000", "train.eval_every_steps=1000", "checkpoint.every_steps=1000")
    started = start_run(["train", "run.yaml", *words], folder=bench.path)
    wait_for_step(bench.path / "cut/log.jsonl", 3, run=started)
    os.killpg(started.process.pid, number)
    ended = started.finish()
    assert ended.exit_code == exit_code
    assert "Traceback" not in ended.errors
    last = len(steps_of(bench.path / "cut"))
    assert step_folders(bench.path / "cut") == [f"step-{last}"]
    command = f"trireme train run.yaml {' '.join(words)} --resume"
    assert command in ended.output
    assert ended.output.count(command) == 1, "said once"
    assert json.loads((bench.path / "cut/run.json").read_text())["status"] == "stopped"


def test_overwrite_removes_the_run_and_leaves_what_others_put_there(bench):
    assert bench.train().exit_code == 0
    run = bench.path / "runs/run"
    (run / "notes.txt").write_text("mine")
    (run / "figures").mkdir()
    (run / "figures/a.png").write_text("mine")
    answer = bench.train("--overwrite", "train.max_steps=2")
    assert answer.exit_code == 0, answer.errors
    assert (run / "notes.txt").read_text() == "mine"
    assert (run / "figures/a.png").read_text() == "mine"
    assert step_folders(run) == ["step-2"]
    assert len(steps_of(run)) == 2


@pytest.mark.parametrize(
    "mistake",
    [
        "data.sources=[missing.txt]",
        "model.factory=no_such_package:build",
        "precision.policy=fp64",
        "model.init_from=nowhere",
        "train.num_threads=-1",
    ],
)
def test_overwrite_keeps_the_old_run_until_the_new_one_can_begin(bench, mistake):
    assert bench.train("train.max_steps=2").exit_code == 0
    before = fingerprint(bench.path / "runs/run")
    more = [f"model.{key}=" for key in ("name", "num_layers", "d_model", "num_heads", "num_kv_heads", "d_ffn")]
    answer = bench.train("--overwrite", mistake, *(more if "factory" in mistake else ()))
    assert answer.exit_code == 2
    assert fingerprint(bench.path / "runs/run") == before


def test_ckp_12_a_used_folder_is_refused_and_stays_as_it_is(bench):
    assert bench.train().exit_code == 0
    before = fingerprint(bench.path / "runs/run")
    answer = bench.train("train.max_steps=4")
    assert answer.exit_code == 2
    assert fingerprint(bench.path / "runs/run") == before


def test_a_folder_that_is_no_run_is_never_touched(bench):
    (bench.path / "thesis").mkdir()
    (bench.path / "thesis/chapter.tex").write_text("years of work")
    for words in ((), ("--overwrite",), ("--resume",)):
        answer = bench.train("run.dir=thesis", *words)
        assert answer.exit_code == 2
    assert [path.name for path in (bench.path / "thesis").iterdir()] == ["chapter.tex"]


def test_mon_02_a_second_process_in_the_folder_is_refused(bench):
    words = ("train.max_steps=3000", "train.eval_every_steps=3000")
    first = start_run(["train", "run.yaml", *words], folder=bench.path)
    log = bench.path / "runs/run/log.jsonl"
    try:
        wait_for_step(log, 1, run=first)
        for option in ("--resume", "--overwrite", ""):
            answer = bench.train(*words, *filter(None, [option]))
            assert answer.exit_code == 2
            assert str(first.process.pid) in answer.errors
    finally:
        first.kill()
    steps = [fields["step"] for fields in lines_of(log)] if log.read_bytes().endswith(b"\n") else []
    assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_mon_09_nan_from_a_step_on_is_counted_and_stops_the_run(bench, monkeypatch, policy):
    _poison(monkeypatch, from_step=3)
    answer = bench.train(f"precision.policy={policy}", "train.max_steps=20", "train.max_nonfinite=3")
    assert answer.exit_code not in (0, 1)
    assert "--resume" in answer.output + answer.errors or "checkpoint" in answer.errors
    lines = lines_of(bench.path / "runs/run/log.jsonl")
    assert [fields["step"] for fields in lines if fields["skipped"]] == [4, 5, 6]
    assert lines[-1]["num_skipped"] == 3
    assert json.loads((bench.path / "runs/run/run.json").read_text())["status"] == "failed"
    _check_finite(bench.path / "runs/run")
    assert "3 in a row" in texts_of(bench.path / "runs/run", level="warning") or "3 steps" in answer.errors


def test_nan_with_policy_stop_ends_at_once(bench, monkeypatch):
    _poison(monkeypatch, from_step=3)
    answer = bench.train("train.on_nonfinite=stop")
    assert answer.exit_code == 2
    assert len(lines_of(bench.path / "runs/run/log.jsonl")) == 4
    _check_finite(bench.path / "runs/run")


def _poison(monkeypatch, *, from_step):
    """Make the loss NaN in every step after ``from_step`` finished ones."""
    from trireme.train import loop

    seed_step, now = loop.seed_step, {"step": 0}

    def seed(seed, *, step, device):
        now["step"] = step
        return seed_step(seed, step=step, device=device)

    monkeypatch.setattr(loop, "seed_step", seed)
    from trireme.models import cross_entropy

    original = cross_entropy.token_cross_entropy

    def poisoned(outputs, batch):
        loss_sum, count = original(outputs, batch)
        return (loss_sum * float("nan") if now["step"] >= from_step else loss_sum), count

    from trireme.train import step as step_file

    monkeypatch.setattr(step_file, "token_cross_entropy", poisoned)


def _check_finite(run):
    from trireme.checkpoint import find_nonfinite, open_checkpoint

    newest = open_checkpoint(run / "checkpoints" / step_folders(run)[-1])
    assert find_nonfinite(newest) == ()


def test_a_full_disk_in_the_middle_is_a_warning_and_at_the_end_an_error(bench, monkeypatch):
    with monkeypatch.context() as patches:
        _fill_disk(patches, at=1)
        answer = bench.train()
    assert answer.exit_code == 0, answer.errors
    assert "the disk ran full" in texts_of(bench.path / "runs/run", level="warning")
    assert step_folders(bench.path / "runs/run") == ["step-4", "step-6"]
    with monkeypatch.context() as patches:
        _fill_disk(patches, at=3)
        answer = bench.train("run.dir=runs/end")
    assert answer.exit_code == 2
    assert "the disk ran full" in answer.errors
    assert step_folders(bench.path / "runs/end") == ["step-2", "step-4"]
    assert bench.train("run.dir=runs/end", "--resume").exit_code == 0
    assert steps_of(bench.path / "runs/end") == steps_of(bench.path / "runs/run")


def _fill_disk(patches, *, at):
    """Have the disk be full in the save number ``at``."""
    patches.setenv("TRIREME_WRITE_FAULT", json.dumps({"kind": "full", "times": 9, "only": f"step-{2 * at}."}))


def test_a_run_folder_that_can_not_be_written_is_one_line(bench):
    (bench.path / "file").write_text("not a folder")
    for folder in ("file", "file/run", "/proc/run"):
        answer = bench.train(f"run.dir={folder}")
        assert answer.exit_code == 2
        assert answer.errors.count("\n") == 1
        assert folder in answer.errors


@pytest.mark.parametrize("policy", ["fp16", "bf16", "bf16_pure"])
def test_every_number_format_trains_and_resumes(bench, policy):
    whole = bench.train(f"precision.policy={policy}", "run.dir=whole")
    assert whole.exit_code == 0, whole.errors
    bench.train(f"precision.policy={policy}", "run.dir=cut", "train.max_steps=4")
    bench.train(f"precision.policy={policy}", "run.dir=cut", "--resume", "--extend", "stretch")
    assert [step[0] for step in steps_of(bench.path / "cut")] == [1, 2, 3, 4, 5, 6]
    scales = [fields["loss_scale"] for fields in lines_of(bench.path / "whole/log.jsonl")]
    assert all(scales) if policy == "fp16" else not any(scales)


def test_auto_measures_once_and_a_resume_reuses_the_decision(bench, monkeypatch):
    answer = bench.train("precision.policy=auto", "train.max_steps=4")
    assert answer.exit_code == 0, answer.errors
    before = (bench.path / "runs/run/decisions.json").read_bytes()
    from trireme.job import build

    monkeypatch.setattr(build, "choose_precision", lambda *args, **kwargs: pytest.fail("measured again"))
    answer = bench.train("precision.policy=auto", "train.max_steps=5", "--resume", "--extend", "hold")
    assert answer.exit_code == 0, answer.errors
    assert (bench.path / "runs/run/decisions.json").read_bytes() == before


def test_a_format_that_the_device_lacks_is_refused_unless_a_fallback_is_named(bench, monkeypatch):
    from trireme.train import precision

    monkeypatch.setattr(precision, "can_compute", lambda dtype, *, device: dtype.itemsize > 2)
    answer = bench.train("precision.policy=bf16")
    assert answer.exit_code == 2
    assert "precision.fallback" in answer.errors
    answer = bench.train("precision.policy=bf16", "precision.fallback=fp32")
    assert answer.exit_code == 0, answer.errors
    assert "fp32" in texts_of(bench.path / "runs/run")


def test_micro_batches_that_do_not_divide_change_rounding_alone(bench):
    assert bench.train("run.dir=one").exit_code == 0
    assert bench.train("run.dir=other", "train.microbatch_seqs=3").exit_code == 0
    one, other = (steps_of(bench.path / name) for name in ("one", "other"))
    for left, right in zip(one, other, strict=True):
        assert right[1] == pytest.approx(left[1], rel=1e-5)
        assert right[2] == pytest.approx(left[2], rel=1e-4)


def test_epochs_end_with_a_short_step_that_uses_what_is_left(bench):
    answer = bench.train("train.max_steps=", "train.epochs=0.5", "train.global_batch_seqs=7")
    assert answer.exit_code == 0, answer.errors
    lines = lines_of(bench.path / "runs/run/log.jsonl")
    assert lines[-1]["step_tokens"] < lines[0]["step_tokens"]
    assert lines[-1]["epoch"] == 0.5
    assert lines[-1]["tokens"] == sum(fields["step_tokens"] for fields in lines)


def test_ckp_10_the_newest_and_the_best_are_kept(bench):
    answer = bench.train("checkpoint.keep_last=1", "checkpoint.keep_best=true", "train.eval_every_steps=2")
    assert answer.exit_code == 0, answer.errors
    evals = lines_of(bench.path / "runs/run/evals.jsonl")
    best = min(evals, key=lambda fields: fields["eval_loss"])["step"]
    assert step_folders(bench.path / "runs/run") == [f"step-{step}" for step in sorted({best, 6})]


def test_ckp_32_init_from_says_what_was_ignored(bench):
    assert bench.train().exit_code == 0
    for path in ("runs/run", "runs/run/checkpoints/step-4"):
        answer = bench.train("run.dir=runs/second", f"model.init_from={path}", "--overwrite")
        assert answer.exit_code == 0, answer.errors
        text = texts_of(bench.path / "runs/second")
        assert "optimizer and step ignored" in text
        assert "--resume" in text
        assert "starts at step 0" in text


def test_init_from_the_run_that_is_overwritten_is_refused_and_keeps_it(bench):
    assert bench.train("train.max_steps=2").exit_code == 0
    before = fingerprint(bench.path / "runs/run")
    answer = bench.train("model.init_from=runs/run", "--overwrite")
    assert answer.exit_code == 2
    assert "run.dir" in answer.errors
    assert fingerprint(bench.path / "runs/run") == before


def test_a_killed_run_that_had_no_checkpoint_starts_again_and_says_so(bench):
    words = ("train.max_steps=2000", "train.eval_every_steps=2000", "checkpoint.every_steps=2000")
    started = start_run(["train", "run.yaml", *words], folder=bench.path)
    started.kill_at_step(bench.path / "runs/run/log.jsonl", 2)
    answer = bench.train("train.max_steps=4", "--resume", "--extend", "hold")
    assert answer.exit_code == 0, answer.errors
    assert "no checkpoint yet" in texts_of(bench.path / "runs/run", level="warning")
    assert len(steps_of(bench.path / "runs/run")) == 4


def test_the_time_of_a_resumed_run_stands_beside_its_own_tokens(bench):
    assert bench.train().exit_code == 0
    answer = bench.train("train.max_steps=8", "--resume", "--extend", "hold")
    took = next(line for line in answer.output.splitlines() if "took" in line)
    assert "256 tokens" in took, "two steps of 128"


@pytest.mark.parametrize("option", [("--extend", "hold"), ("--accept", "train.lr"), ("--allow-missing", "rng")])
def test_an_option_of_going_on_is_refused_where_a_run_begins(bench, option):
    answer = bench.train(*option)
    assert answer.exit_code == 2
    assert option[0] in answer.errors
    assert not (bench.path / "runs").exists()


def test_an_interrupt_while_libraries_load_ends_the_process_at_once():
    code = (
        "import os, signal; from trireme.cli.imports import whole_imports\n"
        "with whole_imports():\n  os.kill(os.getpid(), signal.SIGINT)\nprint('went on')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_ckp_32_weights_of_a_hugging_face_folder_begin_a_run(bench):
    import trireme

    assert bench.train("train.max_steps=2").exit_code == 0
    trireme.save_folder(trireme.load("runs/run").model, path="exported", tokenizer_folder="runs/run/tokenizer")
    answer = bench.train("run.dir=second", "model.init_from=exported", "train.lr=1e-9", "train.warmup_steps=0")
    assert answer.exit_code == 0, answer.errors
    assert "weights taken from exported; training starts at step 0" in texts_of(bench.path / "second")
    first = [fields["eval_loss"] for fields in lines_of(bench.path / "runs/run/evals.jsonl")]
    second = [fields["eval_loss"] for fields in lines_of(bench.path / "second/evals.jsonl")]
    assert second[0] == pytest.approx(first[-1], rel=1e-5), "a rate of nearly zero learns nothing"
