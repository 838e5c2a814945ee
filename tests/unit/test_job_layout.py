"""What ``layout`` means for the ranks there are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from trireme import __version__
from trireme.cluster import Cluster, parse_cluster
from trireme.config import RunConfig, load_config
from trireme.errors import LayoutError
from trireme.graph import ModelGraph, find_graph, graph_for_data, graph_of_section
from trireme.job.layout import arrange, resolve_layout
from trireme.job.planning import Place, check_model, decide_plan, planned_microbatch_seqs
from trireme.models import build_model
from trireme.observe import RunFolder
from trireme.parallel import capture
from trireme.plan import (
    LayerChoice,
    Layout,
    Plan,
    Problem,
    format_plan,
    layer_paths,
    make_plan,
    parse_layout,
    search,
)

CLUSTER = parse_cluster("cpu:2x1")


def settings(*overrides: str) -> RunConfig:
    return load_config(None, ("train.global_batch_seqs=8", "data.seq_len=16", *overrides), purpose="show").config


def resolve(ranks: int = 1, **keys: object) -> tuple[str, list[str]]:
    heard: list[str] = []
    config = settings(*(f"layout.{key}={value}" for key, value in keys.items()))
    return str(resolve_layout(config, ranks=ranks, notice=heard.append).layout), heard


def test_keys_and_text_mean_the_same_and_the_rest_of_the_ranks_is_data_parallel() -> None:
    by_key, heard = resolve(8, tp=2, pp=2, zero=3)
    by_text, _ = resolve(8, text="tp=2,pp=2,zero3")
    assert by_key == by_text
    assert any("2" in text for text in heard), "what was filled in is said"
    assert resolve()[0] == str(Layout())


def test_too_few_ranks_are_told_how_to_start_as_many() -> None:
    with pytest.raises(LayoutError, match="start 4, with --nproc-per-node 4"):
        resolve(1, tp=2, pp=2)


def test_degrees_that_do_not_divide_the_ranks_are_refused_with_what_would() -> None:
    with pytest.raises(LayoutError, match="does not come out even with 6 ranks"):
        resolve(6, tp=4)


def write_plan(path: Path, *, offload: bool = False, **changes: object) -> RunConfig:
    values: dict[str, Any] = {
        "layout": parse_layout("pp=2,recompute=full", ranks=2).layout,
        "cuts": ("layers.2",),
        "layers": (LayerChoice(path="layers.0", recompute="selective", offload=offload),),
        "precision": "fp32",
        "model": "llama-1m",
        "global_batch_seqs": 8,
        "seq_len": 16,
        "model_hash": "m",
        "cluster_hash": "c",
        "trireme_version": __version__,
    }
    (path / "plan.json").write_text(format_plan(Plan(**values | changes)))
    return settings(f"layout={path / 'plan.json'}")


def test_a_plan_gives_layout_cuts_and_what_single_layers_recompute(tmp_path: Path) -> None:
    found = resolve_layout(write_plan(tmp_path), ranks=2, notice=lambda text: None)
    assert (found.layout.pp, found.cuts, dict(found.recompute)) == (2, ("layers.2",), {"layers.0": "selective"})
    assert found.layout.recompute == "none", "layers that the plan doesn't name keep everything"
    with pytest.raises(LayoutError, match=r"offloads layers\.0"):
        resolve_layout(write_plan(tmp_path, offload=True), ranks=2, notice=lambda text: None)
    with pytest.raises(LayoutError, match="can't be read: No such file"):
        resolve_layout(settings("layout=nowhere/plan.json"), ranks=2, notice=lambda text: None)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"global_batch_seqs": 16}, r"train\.global_batch_seqs = 16, the run has 8"),
        ({"seq_len": 32}, r"data\.seq_len = 32, the run has 16"),
        ({"trireme_version": "0.0.9"}, r"made by Trireme 0\.0\.9"),
    ],
)
def test_a_plan_for_another_batch_length_or_version_is_refused(
    tmp_path: Path, changes: dict[str, object], says: str
) -> None:
    config = write_plan(tmp_path, **changes)
    with pytest.raises(LayoutError, match=says):
        resolve_layout(config, ranks=2, notice=lambda text: None)


def test_micro_batches_of_the_settings_and_of_the_plan_must_agree(tmp_path: Path) -> None:
    config = write_plan(tmp_path)
    train = config.train.model_copy(update={"microbatch_seqs": 3})
    with pytest.raises(LayoutError, match=r"train\.microbatch_seqs = \d, the run has 3"):
        resolve_layout(config.model_copy(update={"train": train}), ranks=2, notice=lambda text: None)


def planned(graph: ModelGraph, **values: Any) -> Plan:
    problem = Problem(model=graph, cluster=CLUSTER, global_batch_seqs=8, seq_len=16, precision="fp32", **values)
    return make_plan(search(problem, top=1).best, version=__version__)


def test_a_plan_for_the_named_model_runs_and_another_is_refused() -> None:
    config = settings("model.name=llama-1m")
    heard: list[str] = []
    plan = planned(graph_of_section(config.model))
    check_model(plan, config=config, vocab_size=100, cluster=CLUSTER, notice=heard.append)
    assert len(heard) == 1
    assert "a vocabulary of" in heard[0], "the tokenizer's is another than the preset's"
    trained = planned(graph_for_data(config.model, vocab_size=100, seq_len=16))
    heard.clear()
    check_model(trained, config=config, vocab_size=100, cluster=parse_cluster("cpu:1x2"), notice=heard.append)
    assert len(heard) == 1
    assert "another cluster" in heard[0]
    deeper = settings("model.name=llama-1m", "model.num_layers=3")
    with pytest.raises(LayoutError, match="The plan was made for llama-1m with hash"):
        check_model(plan, config=deeper, vocab_size=100, cluster=CLUSTER, notice=heard.append)


def place(cluster: Cluster | None = CLUSTER) -> Place:
    return Place(device_name="Strange 9000", cluster=cluster, num_ranks=2, precision="fp32")


def test_auto_is_decided_once_for_a_number_of_ranks_and_said_with_the_runner_up(tmp_path: Path) -> None:
    heard: list[str] = []
    config = settings("model.name=llama-1m", "train.microbatch_seqs=2")
    with RunFolder.open_fresh(tmp_path / "run") as folder:
        first, again = (
            decide_plan(config, vocab_size=100, place=place(), folder=folder, notice=heard.append) for _ in range(2)
        )
    assert first == again
    assert planned_microbatch_seqs(first) == 2
    assert first.layout.world_size == 2
    assert [text.partition(" ")[0] for text in heard] == ["layout", "next", "layout", "next"]
    assert "as decided for this run before" in heard[2]
    assert arrange(first).plan == first
    with RunFolder.open_fresh(tmp_path / "other") as folder, pytest.raises(LayoutError, match="knows Strange 9000"):
        decide_plan(config, vocab_size=100, place=place(None), folder=folder, notice=heard.append)


def test_auto_is_searched_for_when_the_model_and_the_machine_are_known() -> None:
    named = settings("layout=auto", "model.name=llama-1m")
    assert resolve_layout(named, ranks=2, notice=lambda text: None).layout == Layout(), (
        "found when the machine is known"
    )
    found = resolve_layout(settings("layout=auto", "model.factory=mine.py:build"), ranks=2, notice=print)
    assert found.layout == Layout(), "searched for when the model is there"


def tiny(kind: str, **sizes: int) -> dict[str, Any]:
    return {"architectures": [f"{kind}ForCausalLM"], "vocab_size": 96, **sizes}


ROPE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES = {
    "llama": tiny("Llama", **ROPE, intermediate_size=64),
    "qwen2": tiny("Qwen2", **ROPE, intermediate_size=64),
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_called_in_a_plan_what_training_calls_its_blocks(tmp_path: Path, family: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **FAMILIES[family])
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config)
    assert blocks_of(module) == paths_of(find_graph(str(tmp_path)))


def test_layers_of_our_decoder_are_called_the_same() -> None:
    section = settings("model.name=llama-1m").model
    module = build_model(section, vocab_size=100, seq_len=16, seed=0, notice=lambda text: None)
    assert blocks_of(module) == paths_of(graph_of_section(section))


def blocks_of(module: torch.nn.Module) -> tuple[str, ...]:
    def call(module: torch.nn.Module, batch: Mapping[str, Any]) -> Any:
        return module(batch["input_ids"])

    return capture(module, {"input_ids": torch.zeros((1, 8), dtype=torch.int64)}, call=call).blocks


def paths_of(graph: ModelGraph) -> tuple[str, ...]:
    problem = Problem(model=graph, cluster=CLUSTER, global_batch_seqs=8, seq_len=16)
    return layer_paths(problem.workload(Layout(dp_replicate=2)))
