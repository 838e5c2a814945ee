"""What a config.json may say, what is refused, and what asking costs."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.family_models import FAMILY_MODELS, Sizes, tiny_model
from trireme.errors import ModelError
from trireme.graph import count_model_params, find_graph, find_model, read_config

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IMPORT_LIMIT_S = 0.05
"""Of processor time, best of several starts, so that a busy machine doesn't decide."""


def test_a_file_a_folder_a_mapping_and_a_name_give_the_same_graph(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8")
    totals = {count_model_params(graph).total for graph in (read_config(LLAMA), find_graph(str(file)))}
    totals |= {count_model_params(read_config(place)).total for place in (file, tmp_path, str(tmp_path))}
    assert len(totals) == 1
    assert find_graph("llama-3-8b") is find_model("meta-llama/Llama-3-8B")


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"model_type": "lama"}, ("lama", "llama")),
        ({"model_type": "mamba2"}, ("mamba2", "captured")),
        ({"model_type": None}, ("model_type",)),
        ({"hidden_size": None}, ("hidden_size", "llama")),
        ({"hidden_size": "64"}, ("hidden_size", "'64'", "at least 1")),
        ({"num_hidden_layers": 0}, ("num_hidden_layers", "0")),
        ({"num_attention_heads": True}, ("num_attention_heads", "True")),
        ({"num_key_value_heads": 3}, ("num_attention_heads=4", "num_key_value_heads=3")),
        ({"attention_bias": "no"}, ("attention_bias", "true or false")),
        ({"attention_dropout": 2}, ("attention_dropout", "0 to 1")),
        ({"architectures": ["LlamaForTokenClassification"]}, ("LlamaForTokenClassification", "capture")),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, ("layer_types", "2", "1")),
        ({"model_type": "llama4"}, ("text_config",)),
        ({"num_hidden_layers": 10**9}, ("num_hidden_layers", "10000")),
        ({"hidden_act": "silo"}, ("hidden_act=silo", "silu")),
        ({"model_type": "qwen2", "layer_types": ["full", "full"]}, ("'full'", "full_attention")),
        ({"hidden_size": 63}, ("hidden_size=63", "num_attention_heads=4")),
    ],
)
def test_a_wrong_setting_is_refused_by_name(change: dict[str, Any], parts: tuple[str, ...]) -> None:
    with pytest.raises(ModelError) as caught:
        read_config({**LLAMA, **change}, name="mine")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "near"),
    [("llama3-8b", "llama-3-8b"), ("gpt2-xxl", "gpt2-xl"), ("deepseek_v3.1", "deepseek-v3"), ("qwen3-8", "qwen3-8b")],
)
def test_a_misspelt_name_meets_the_nearest_one(asked: str, near: str) -> None:
    with pytest.raises(ModelError, match=near):
        find_model(asked)


def test_a_name_like_no_other_is_told_where_names_are() -> None:
    with pytest.raises(ModelError, match="trireme models"):
        find_model("zzzzzz")


@pytest.mark.parametrize(("text", "part"), [("{", "config.json"), ("[1]", "list"), ("\xff", "config.json")])
def test_a_damaged_file_is_named(tmp_path: Path, text: str, part: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=part):
        read_config(file)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        find_graph(str(tmp_path / "nowhere.json"))


def test_messages_speak_chinese(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIREME_LANG", "zh")
    with pytest.raises(ModelError, match="内置表"):
        read_config({**LLAMA, "model_type": "mamba2"})


def run_fresh(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_a_graph_is_built_without_torch_or_any_heavy_module() -> None:
    heavy = ("torch", "transformers", "numpy", "pydantic", "yaml")
    code = (
        "import sys\nfrom trireme.graph import count_model_params, find_model\n"
        f"count_model_params(find_model('deepseek-v3'))\nprint(*[m for m in {heavy} if m in sys.modules], 'end')"
    )
    assert run_fresh(code) == ["end"]


def test_importing_the_room_costs_little_and_loads_no_family() -> None:
    code = (
        "import sys, time\nstart = time.process_time()\nimport trireme.graph\n"
        "print(time.process_time() - start, any('graph.families' in name for name in sys.modules))"
    )
    starts = [run_fresh(code) for _ in range(5)]
    assert {loaded for _, loaded in starts} == {"False"}
    assert min(float(seconds) for seconds, _ in starts) < IMPORT_LIMIT_S


def test_gemma_with_images_is_read_by_its_language_part() -> None:
    text = {**LLAMA, "model_type": "gemma3_text", "sliding_window": 8, "head_dim": 16}
    graph = read_config(
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    )
    alone = read_config(text)
    assert count_model_params(graph).total == count_model_params(alone).total
    assert graph.omitted


JUNK = (None, 0, -1, 3, 1.5, True, "x", ["x"], [1], {"a": 1}, 10**9)


@pytest.mark.parametrize("name", FAMILY_MODELS)
def test_any_value_of_any_key_gives_a_graph_or_one_clear_error(name: str) -> None:
    values = tiny_model(name, Sizes()).values()
    draw = random.Random(name)
    for key in values:
        for junk in draw.sample(JUNK, 3):
            try:
                count_model_params(read_config({**values, key: junk}, name="mine"))
            except ModelError as error:
                assert "\n" not in str(error)


def reach(keys: dict[str, Any]) -> list[int | None]:
    """The most keys that a query sees, layer by layer."""
    blocks = read_config({**LLAMA, **keys}).stacks[0].blocks
    return [op.attention.reach for block in blocks for op in block.ops if op.attention]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"model_type": "mistral"}, [4096, 4096]),
        ({"model_type": "mistral", "sliding_window": None}, [None, None]),
        ({"model_type": "gemma2"}, [4096, None]),
        ({"model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1}, [128, None]),
        ({"model_type": "qwen2"}, [None, None]),
        ({"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1}, [None, 4096]),
        ({"model_type": "llama4_text", "no_rope_layers": [1, 0, 1]}, [8192, None]),
        ({"model_type": "phi3", "sliding_window": 7}, [7, 7]),
    ],
)
def test_an_absent_window_is_the_family_s_and_a_null_is_none(keys: dict[str, Any], expected: list[int | None]) -> None:
    assert reach(keys) == expected


@pytest.mark.parametrize(("keys", "width"), [({}, 128), ({"head_dim": None}, 16), ({"head_dim": 24}, 24)])
def test_an_absent_head_width_is_the_family_s_and_a_null_is_the_share(keys: dict[str, Any], width: int) -> None:
    block = read_config({**LLAMA, "model_type": "qwen3", **keys}).stacks[0].blocks[0]
    assert [op.attention.qk_width for op in block.ops if op.attention] == [width]
