"""``trireme compile-report`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.cli.tiny_run import OVERRIDES, TEXT
from trireme.cli.program import main
from trireme.train import compile_measure


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> object:
    """Dynamo without a code generator, which takes a minute less."""
    original = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: original(self, backend="eager"))
    yield
    torch.compiler.reset()


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    run_file = tmp_path / "run.yaml"
    run_file.write_text(f"data:\n  sources:\n    - path: {tmp_path / 'text.txt'}\n", encoding="utf-8")
    more = ("data.tokenizer_vocab_size=300", "data.seq_len=16", "train.global_batch_seqs=4", "train.microbatch_seqs=2")
    return ["compile-report", str(run_file), *OVERRIDES, "train.max_steps=1", *more]


def test_a_runs_own_batch_is_measured_as_written_and_compiled(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    figures = found["figures"]
    assert (found["seqs"], found["seq_len"], figures["num_blocks"]) == (2, 16, 2)
    assert figures["counts"]["num_programs"] > 0
    assert min(figures[name] for name in ("eager_s", "compiled_s", "compile_s")) > 0.0
    num_gradient_bytes = 4 * 320 * 32  # the table's alone
    assert min(figures["eager_peak_bytes"], figures["compiled_peak_bytes"]) > num_gradient_bytes


def test_a_machine_without_a_compiler_gets_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> float:
        raise RuntimeError("no g++ here")

    monkeypatch.setattr(compile_measure, "timed_s", fail)
    assert main(words) == 2
    assert "no g++ here" in capsys.readouterr().err.splitlines()[-1]


def test_a_spread_run_is_refused_by_name(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "layout=recompute=full"]) == 2
    assert "recompute=full" in capsys.readouterr().err
