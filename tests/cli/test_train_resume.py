"""Going on with a run: bit for bit, or refused with nothing changed."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace

import pytest

from tests.cli.train_command import (
    damage,
    fingerprint,
    lay_out,
    lines_of,
    make_bench,
    step_folders,
    steps_of,
    texts_of,
)
from trireme.checkpoint import open_checkpoint, save_checkpoint
from trireme.checkpoint.manifest import format_manifest, parse_manifest
from trireme.testing.faults import start_run


@pytest.fixture
def bench(tmp_path, capsys, monkeypatch):
    return make_bench(tmp_path, capsys, monkeypatch)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of six steps with checkpoints 2, 4 and 6, to copy."""
    from tests.cli.train_command import SETTINGS
    from trireme.job import run

    path = tmp_path_factory.mktemp("finished")
    lay_out(path)
    source = {"path": str(path / "text.txt"), "txt_document": "paragraph"}
    settings = {**SETTINGS, "run": {"dir": str(path / "runs/run")}, "data": {**SETTINGS["data"], "sources": [source]}}
    run(settings)
    return path


@pytest.fixture
def used(bench, finished):
    """A bench whose run folder holds a copy of the finished run, made from the same settings."""
    shutil.copytree(finished / "runs", bench.path / "runs")
    (bench.path / "text.txt").unlink()
    config = (bench.path / "runs/run/config.yaml").read_text(encoding="utf-8")
    (bench.path / "run.yaml").write_text(config.replace(str(finished / "runs/run"), "runs/run"), encoding="utf-8")
    return bench


def _unfinish(bench, *, step):
    """Leave the run as a kill after the checkpoint of ``step`` would."""
    for name in step_folders(bench.path / "runs/run"):
        if int(name.removeprefix("step-")) > step:
            shutil.rmtree(bench.path / "runs/run/checkpoints" / name)


@pytest.mark.parametrize(
    "overrides",
    [
        ("precision.policy=fp32", "model.dropout=0.1", "data.workers=0"),
        ("precision.policy=bf16", "model.dropout=0.1", "data.workers=1"),
    ],
    ids=["fp32", "bf16"],
)
def test_a_killed_run_goes_on_bit_for_bit(bench, overrides):
    whole = bench.train("run.dir=whole", "train.max_steps=40", *overrides)
    assert whole.exit_code == 0, whole.errors
    words = ("run.dir=cut", "train.max_steps=40", *overrides)
    kill_at = random.Random(overrides[0]).randint(3, 20)
    killed = start_run(["train", "run.yaml", *words], folder=bench.path)
    killed.kill_at_step(bench.path / "cut/log.jsonl", kill_at)
    assert len(_whole_lines(bench.path / "cut/log.jsonl")) < 40, "killed too late to prove anything"
    resumed = bench.train(*words, "--resume")
    assert resumed.exit_code == 0, resumed.errors
    assert steps_of(bench.path / "cut") == steps_of(bench.path / "whole")


def _whole_lines(log):
    """Return the lines that a kill left whole."""
    return log.read_bytes().split(b"\n")[:-1]


def test_ckp_20_another_number_of_workers_goes_on_with_the_same_samples(used):
    whole = steps_of(used.path / "runs/run")
    _unfinish(used, step=2)
    answer = used.train("data.workers=1", "--resume")
    assert answer.exit_code == 0, answer.errors
    assert "data.workers 0 -> 1" in answer.output
    assert steps_of(used.path / "runs/run") == whole


def test_a_finished_run_says_so_and_what_to_type_next(used):
    before = fingerprint(used.path / "runs/run/checkpoints")
    again = used.train("--resume")
    assert again.exit_code == 0
    for words in ("trireme generate runs/run", "trireme train run.yaml --resume train.max_steps=12 --extend stretch"):
        assert words in again.output
    assert "Already finished: step 6 of 6" in again.output
    assert " tokens" not in again.output, "nothing was trained, so no time and no tokens are told"
    anew = used.train()
    assert anew.exit_code == 2
    for words in ("finished, 6 of 6", "trireme generate runs/run", "--resume", "--overwrite", "run.dir="):
        assert words in anew.errors
    assert fingerprint(used.path / "runs/run/checkpoints") == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train.max_steps=12",), "--extend"),
        (("train.max_steps=3",), "at least 4"),
        (("train.lr=5e-4",), "--accept train.lr"),
        (("train.weight_decay=0.5",), "--accept train.weight_decay"),
        (("data.seq_len=16",), "data.seq_len 32 -> 16"),
        (("data.seq_len=16", "--accept", "data.seq_len"), "data.seq_len 32 -> 16"),
        (("run.seed=1",), "run.seed"),
        (("precision.policy=bf16",), "precision.policy"),
        (("model.d_ffn=96",), "model.d_ffn"),
        (("train.global_batch_seqs=8",), "train.global_batch_seqs"),
        (("--accept", "train.lr"), "--accept train.lr"),
        (("--accept", "train.lrr"), "train.lrr"),
        (("trian.lr=1",), "train.lr"),
        (("--overwrite",), "--overwrite"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_refused_resume_changes_no_file(used, words, expected):
    _unfinish(used, step=4)
    before = fingerprint(used.path / "runs/run")
    answer = used.train(*words, "--resume")
    assert answer.exit_code == 2
    assert expected in answer.errors
    assert answer.errors.count("\n") == 1
    assert fingerprint(used.path / "runs/run") == before


def test_other_data_is_refused_and_changes_no_file(used, finished):
    (used.path / "other.txt").write_text(
        "床前明月光，疑是地上霜。\n\n举头望明月，低头思故乡。\n\n" * 40, encoding="utf-8"
    )
    before = fingerprint(used.path / "runs/run")
    answer = used.train("data.sources=[{path: other.txt, txt_document: paragraph}]", "--resume")
    assert answer.exit_code == 2
    assert "other.txt" in answer.errors
    assert fingerprint(used.path / "runs/run") == before


def test_a_text_that_changed_in_place_is_refused(bench):
    assert bench.train("data.tokenizer_vocab_size=310").exit_code == 0
    with (bench.path / "text.txt").open("a", encoding="utf-8") as text:
        text.write("\n\n又一首。明月几时有。")
    before = fingerprint(bench.path / "runs/run")
    answer = bench.train("data.tokenizer_vocab_size=310", "train.max_steps=8", "--extend", "hold", "--resume")
    assert answer.exit_code == 2, answer.output
    assert "data.sources.0" in answer.errors
    assert fingerprint(bench.path / "runs/run") == before


@pytest.mark.parametrize("extend", ["stretch", "hold"])
def test_a_longer_run_goes_on_with_the_rate_that_was_chosen(used, extend):
    old = steps_of(used.path / "runs/run")
    answer = used.train("train.max_steps=12", "--resume", "--extend", extend)
    assert answer.exit_code == 0, answer.errors
    steps = steps_of(used.path / "runs/run")
    assert steps[:6] == old
    assert [step[0] for step in steps] == list(range(1, 13))
    rates = [step[3] for step in steps]
    if extend == "hold":
        assert set(rates[6:]) == {rates[5]}
    else:
        assert rates[6] > rates[5]
        assert rates[11] == pytest.approx(rates[5])


def test_ckp_28_another_rate_is_taken_only_when_accepted(used):
    _unfinish(used, step=4)
    rates = [step[3] for step in steps_of(used.path / "runs/run")]
    answer = used.train("train.lr=5e-4", "--accept", "train.lr", "--resume")
    assert answer.exit_code == 0, answer.errors
    assert "train.lr 0.001 -> 0.0005" in texts_of(used.path / "runs/run")
    now = [step[3] for step in steps_of(used.path / "runs/run")]
    assert now[:4] == rates[:4]
    assert now[4:] == pytest.approx([rate / 2 for rate in rates[4:]])


def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before(used):
    whole = steps_of(used.path / "runs/run")
    damage(used.path / "runs/run/checkpoints/step-6")
    answer = used.train("--resume")
    assert answer.exit_code == 0, answer.errors
    assert "step-6" in texts_of(used.path / "runs/run", level="warning")
    assert steps_of(used.path / "runs/run") == whole


def test_when_every_checkpoint_is_damaged_nothing_is_changed(used):
    run = used.path / "runs/run"
    for name in step_folders(run):
        damage(run / "checkpoints" / name)
    before = fingerprint(run)
    answer = used.train("--resume")
    assert answer.exit_code == 2
    assert all(name in answer.errors for name in step_folders(run))
    assert fingerprint(run) == before


def test_a_run_folder_stands_for_its_settings(used):
    _unfinish(used, step=4)
    origins = json.loads((used.path / "runs/run/config_origins.json").read_text(encoding="utf-8"))
    del origins["run.dir"]  # the folder was named on this command line
    whole = steps_of(used.path / "runs/run")
    answer = used.type("train", "runs/run", "--resume")
    assert answer.exit_code == 0, answer.errors
    assert "changed since" not in answer.output
    assert steps_of(used.path / "runs/run") == whole
    now = json.loads((used.path / "runs/run/config_origins.json").read_text(encoding="utf-8"))
    assert origins.items() <= now.items()


def test_a_moved_run_folder_goes_on_where_it_is(used):
    _unfinish(used, step=4)
    (used.path / "runs/run").rename(used.path / "moved")
    answer = used.type("train", "moved", "--resume")
    assert answer.exit_code == 0, answer.errors
    assert [step[0] for step in steps_of(used.path / "moved")] == [1, 2, 3, 4, 5, 6]
    assert not (used.path / "runs/run").exists()


def test_a_line_about_the_log_comes_only_where_something_was_cut(used):
    answer = used.train("train.max_steps=7", "--resume", "--extend", "hold")
    assert answer.exit_code == 0, answer.errors
    assert "taken out" not in answer.output
    _unfinish(used, step=4)
    answer = used.train("train.max_steps=7", "--resume", "--extend", "hold")
    assert "3 later lines" in answer.output


def test_ckp_36_a_damaged_random_state_stops_the_resume_unless_it_is_allowed(used):
    _unfinish(used, step=4)
    _damage_random_state(used.path / "runs/run/checkpoints/step-4")
    before = fingerprint(used.path / "runs/run")
    answer = used.train("--resume")
    assert answer.exit_code == 2
    assert "rank 0" in answer.errors
    assert "--allow-missing rng" in answer.errors
    assert fingerprint(used.path / "runs/run") == before
    answer = used.train("--resume", "--allow-missing", "rng")
    assert answer.exit_code == 0, answer.errors
    resumes = [event for event in lines_of(used.path / "runs/run/events.jsonl") if event["kind"] == "resume"]
    assert resumes[-1]["data"]["exact"] is False


def _damage_random_state(checkpoint):
    """Write another random state of one generator, with hashes that fit it: only restoring it can tell."""
    manifest = parse_manifest((checkpoint / "manifest.json").read_bytes(), path=checkpoint)
    rng = {**manifest.state["rng"], "python": [3, [1, 2, 3], None]}
    text = format_manifest(replace(manifest, state={**manifest.state, "rng": rng}))
    for name in ("manifest.json", "manifest.copy.json"):
        (checkpoint / name).write_bytes(text)


def test_ckp_32_weights_alone_are_no_checkpoint_to_go_on_from(used):
    run = used.path / "runs/run"
    newest = open_checkpoint(run / "checkpoints/step-6")
    weights = {name: newest.tensor(name) for name in newest.names if name.startswith("model/")}
    run_id = json.loads((run / "run.json").read_text())["run_id"]
    save_checkpoint(run / "checkpoints", step=7, tensors=weights, state={}, run_id=run_id)
    before = fingerprint(run)
    answer = used.train("train.max_steps=9", "--resume", "--extend", "hold")
    assert answer.exit_code == 2
    assert "init_from" in answer.errors
    assert fingerprint(run) == before


def test_ckp_04_state_that_nobody_claims_is_named(used):
    _unfinish(used, step=4)
    checkpoint = used.path / "runs/run/checkpoints/step-4"
    manifest = parse_manifest((checkpoint / "manifest.json").read_bytes(), path=checkpoint)
    text = format_manifest(replace(manifest, state={**manifest.state, "loader_of_old": 1}))
    for name in ("manifest.json", "manifest.copy.json"):
        (checkpoint / name).write_bytes(text)
    before = fingerprint(used.path / "runs/run")
    answer = used.train("--resume")
    assert answer.exit_code == 2
    assert "loader_of_old" in answer.errors
    assert fingerprint(used.path / "runs/run") == before
    for name in ("manifest.json", "manifest.copy.json"):
        (checkpoint / name).write_bytes(format_manifest(replace(manifest)))
    assert used.train("--resume").exit_code == 0
