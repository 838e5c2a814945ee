"""``trireme simulate`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trireme.cli import main
from trireme.cluster import load_cluster
from trireme.graph import find_graph
from trireme.plan import Problem, format_plan, make_plan, rank_params, search

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(_LLAMA))
    return path


def _simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["simulate", *words, "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_plan_is_simulated_with_its_cuts_and_holds_the_parameters_it_says(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = Problem(
        model=find_graph(str(config)),
        cluster=load_cluster("h100:8"),
        global_batch_seqs=8,
        seq_len=64,
        fix={"tp": 2, "pp": 2, "dp_shard": 2, "dp_replicate": 1, "zero": 0},
    )
    best = search(problem).best
    plan = tmp_path / "plan.json"
    plan.write_text(format_plan(make_plan(best, version="0")))
    for rank in (0, 7):
        found = _simulated(capsys, str(plan), "--model", str(config), "--rank", str(rank))
        assert found["parameters"] == sum(param.numel for param in rank_params(best.workload, rank))


def test_report_names_peak_parts_and_collectives_by_axis(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--model", str(config), "--layout", "tp=2,dp=2", "--ranks", "4"]) == 0
    text = capsys.readouterr().out
    for word in ("rank 0 of 4", "peak", "parameters", "optimizer", "tp", "all_reduce"):
        assert word in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "x"], "--layout"),
        (["--layout", "tp=2"], "--model"),
        (["--layout", "tp=2", "--model", "nowhere.json", "--ranks", "2"], "nowhere.json"),
        (["nowhere.json"], "nowhere.json"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
