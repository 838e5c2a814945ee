"""From the section ``model`` to a module: by name, by factory, by folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from trireme.config import ModelSection
from trireme.errors import ModelError
from trireme.models import Decoder, build_model

FACTORY = """
import torch
from side import WIDTH

def tiny(vocabulary, scale=1.0):
    return torch.nn.Sequential(torch.nn.Embedding(vocabulary, WIDTH), torch.nn.Linear(WIDTH, vocabulary))

def number():
    return 3

def broken():
    raise RuntimeError("no luck")

constant = 5
"""


def build(section: dict[str, Any], **changes: Any) -> torch.nn.Module:
    return build_model(ModelSection(**section), **{"vocab_size": 97, "seq_len": 16, "seed": 1} | changes)


@pytest.fixture
def factory_file(tmp_path: Path) -> Path:
    (tmp_path / "side.py").write_text("WIDTH = 8")
    file = tmp_path / "my_model.py"
    file.write_text(FACTORY)
    return file


def test_a_name_builds_a_decoder_with_overrides() -> None:
    module = build({"name": "llama-1m", "num_layers": 2, "dropout": 0.1})
    assert isinstance(module, Decoder)
    assert (module.shape.num_layers, module.shape.vocab_size, module.shape.max_seq_len) == (2, 128, 16)
    assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


def test_on_meta_nothing_is_allocated() -> None:
    module = build({"name": "llama-405b"}, device=torch.device("meta"))
    assert all(parameter.is_meta for parameter in module.parameters())


def test_a_file_factory_builds_by_its_arguments_and_the_seed(factory_file: Path) -> None:
    section = {"factory": f"{factory_file}:tiny", "factory_args": {"vocabulary": 97}}
    torch.manual_seed(77)
    state = torch.get_rng_state()
    first, second, other = build(section), build(section), build(section, seed=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert first[0].weight.shape == (97, 8)  # type: ignore[index]
    assert torch.equal(first[0].weight, second[0].weight)  # type: ignore[index]
    assert not torch.equal(first[0].weight, other[0].weight)  # type: ignore[index]


def test_a_package_factory_is_found_from_the_working_folder(
    factory_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(factory_file.parent)
    assert isinstance(build({"factory": "my_model:tiny", "factory_args": {"vocabulary": 5}}), torch.nn.Sequential)
    assert isinstance(build({"factory": "torch.nn:Identity"}), torch.nn.Identity)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (":missing", "no function missing.*tiny"),
        (":constant", "no function constant"),
        (":number", "returned a int"),
        (":broken", "RuntimeError: no luck"),
        (":tiny", "TypeError.*vocabulary"),
        ("", "package.module:function"),
        (":not a name", "package.module:function"),
    ],
)
def test_a_factory_that_does_not_work_is_one_clear_line(factory_file: Path, suffix: str, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build({"factory": f"{factory_file}{suffix}"})
    assert "\n" not in str(caught.value)


def test_a_factory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no file"):
        build({"factory": f"{tmp_path}/none.py:build"})
    with pytest.raises(ModelError, match=r"importing no_such_package\.models failed"):
        build({"factory": "no_such_package.models:build"})
    (tmp_path / "bad.py").write_text("def (")
    with pytest.raises(ModelError, match="SyntaxError"):
        build({"factory": f"{tmp_path}/bad.py:build"})


def folder_with_config(path: Path, **changes: Any) -> Path:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    (path / "config.json").write_text(json.dumps(config | changes))
    return path


def test_a_folder_with_a_config_alone_starts_random_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    said: list[str] = []
    section = {"path": str(folder_with_config(tmp_path))}
    first, second = build(section, notice=said.append), build(section, notice=said.append)
    assert "random" in said[0]
    assert type(first).__name__ == "LlamaForCausalLM"
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    other = build(section, seed=3)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_a_folders_context_and_vocabulary_must_hold_the_data(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    section = {"path": str(folder_with_config(tmp_path))}
    with pytest.raises(ModelError, match=r"data\.seq_len=65.*64"):
        build(section, seq_len=65)
    with pytest.raises(ModelError, match=r"97.*98"):
        build(section, vocab_size=98)


def test_the_hub_is_never_asked(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a folder on this machine"):
        build({"path": "meta-llama/Llama-3.2-1B"})
