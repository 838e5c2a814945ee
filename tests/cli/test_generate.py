"""``trireme generate``: from a run, a checkpoint or a model folder to text."""

from __future__ import annotations

import io
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.cli.tiny_run import make_run
from trireme.cli import main
from trireme.errors import CheckpointError
from trireme.job.loading import find_checkpoint, load_run
from trireme.models import save_folder

CPU = torch.device("cpu")
SHORT = ("--max-new-tokens", "8", "--device", "cpu")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "lyrics", evals={5: 3.0, 10: 2.0, 15: 2.5})


def say_prompt(path: Path, *words: str) -> int:
    return main(["generate", str(path), "--prompt", "明月", *SHORT, *words])


def test_a_prompt_is_continued_and_comes_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert say_prompt(run) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("明月")
    assert len(shown.out) > len("明月\n")
    assert "step-10, on cpu" in shown.err


@pytest.mark.parametrize(
    "prompt", ["明月", "a\tb  c", "🐉龍\n，。！？：；（）１２３ＡＢＣ…①㎏", "<|end|> 'quoted' \"$HOME\""]
)
def test_every_character_of_a_prompt_comes_back(run: Path, capsys: pytest.CaptureFixture[str], prompt: str) -> None:
    assert main(["generate", str(run), "--prompt", prompt, *SHORT]) == 0
    assert capsys.readouterr().out.startswith(prompt)


def test_the_same_seed_writes_the_same_and_samples_differ(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (("--seed", "7"), ("--seed", "7"), ("--seed", "8")):
        say_prompt(run, *words)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    say_prompt(run, "--seed", "7", "--num-samples", "2")
    assert capsys.readouterr().out == f"--- 1/2\n{texts[0]}--- 2/2\n{texts[2]}"


def test_a_prompt_may_come_through_a_pipe(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("明月\n"))
    assert main(["generate", str(run), *SHORT]) == 0
    piped = capsys.readouterr().out
    say_prompt(run)
    assert capsys.readouterr().out == piped


def test_best_last_and_a_step_are_what_they_say(run: Path) -> None:
    assert [find_checkpoint(run, which).step for which in ("best", "last", "step-5", "15")] == [10, 15, 5, 15]


def test_best_passes_over_a_damaged_checkpoint(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for shard in (copy / "checkpoints" / "step-10").iterdir():
        shard.unlink()
    assert find_checkpoint(copy, "best").step == 15


def test_weights_are_those_of_the_checkpoint(run: Path) -> None:
    loaded = load_run(run, checkpoint="step-5", device=CPU)
    again = load_run(run / "checkpoints" / "step-5", device=CPU)
    other = load_run(run, checkpoint="last", device=CPU)
    assert loaded.step == 5
    weights = [next(each.model.parameters()) for each in (loaded, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert loaded.max_seq_len == 96
    assert not loaded.model.training


def test_weights_saved_in_bf16_lose_nothing_when_read(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", dtype=torch.bfloat16)
    loaded = load_run(path, device=CPU)
    saved = find_checkpoint(path, "last")
    for name, parameter in loaded.model.named_parameters():
        assert torch.equal(parameter.detach(), saved.tensor(f"model/{name}").to(parameter.dtype))


def test_a_model_folder_writes_what_its_run_writes(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_run(run, device=CPU)
    save_folder(loaded.model, tokenizer_folder=run / "tokenizer", path=tmp_path / "hf")
    texts = []
    for path in (run, tmp_path / "hf"):
        assert say_prompt(path) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


def test_a_full_context_is_said(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(run), "--prompt", "月", "--max-new-tokens", "500", "--temperature", "0"]) == 0
    assert "context of 96 tokens is full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("lyrcs",), "Did you mean .*lyrics?"),
        ((".",), "holds several runs; name one of them: .*lyrics"),
        (("lyrics/tokenizer",), "holds no run"),
        (("lyrics", "--checkpoint", "step-6"), "there are step-5, step-10, step-15"),
        (("lyrics", "--prompt", "月" * 200), "shorten it"),
        (("lyrics", "--temperature", "-1"), "temperature"),
        (("lyrics", "--top-p", "0"), "top_p"),
        (("lyrics", "--device", "warp"), "warp"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    run: Path,
    words: tuple[str, ...],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run.parent)
    prompt = () if "--prompt" in words else ("--prompt", "明月")
    assert main(["generate", *words, *prompt]) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert re.search(expected, error[0])


def test_a_run_without_a_checkpoint_says_when_one_comes(tmp_path: Path) -> None:
    path = make_run(tmp_path / "run", evals={})
    with pytest.raises(CheckpointError, match="no checkpoint yet"):
        load_run(path, device=CPU)
