"""Model folders: written whole or not at all, read back with equal logits, strict about every tensor."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from trireme.errors import ModelError
from trireme.graph import DecoderShape
from trireme.models import (
    Decoder,
    build_decoder,
    load_decoder,
    load_folder,
    load_folder_weights,
    load_weights,
    save_folder,
)

SHAPE = DecoderShape(
    vocab_size=97,
    num_layers=2,
    d_model=32,
    num_heads=4,
    num_kv_heads=2,
    d_ffn=48,
    max_seq_len=64,
    rope_theta=5000.0,
    norm_eps=1e-6,
)
FP32 = 2e-6
"""Absolute, on logits of order 1: the same model in two implementations."""
IDS = torch.randint(97, (2, 33), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def transformers() -> Any:
    return pytest.importorskip("transformers")


def strong(shape: DecoderShape = SHAPE) -> Decoder:
    """A decoder whose attention and gates are not nearly linear, so that a wrong theta or eps shows."""
    decoder = build_decoder(shape, seed=3)
    for parameter in decoder.parameters():
        parameter.data.mul_(4 if parameter.ndim > 1 else 1)
    return decoder.eval()


@pytest.mark.parametrize("tied", [False, True])
def test_transformers_reads_a_decoders_folder_with_equal_logits(tmp_path: Path, transformers: Any, tied: bool) -> None:
    decoder = strong(replace(SHAPE, tie_embeddings=tied))
    folder = save_folder(decoder, path=tmp_path / "model")
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    with torch.no_grad():
        assert (module(IDS).logits - decoder(IDS)).abs().max() < FP32 * 10
    assert ("lm_head.weight" in load_file(folder / "model.safetensors")) is not tied
    assert (module.lm_head.weight is module.model.embed_tokens.weight) is tied


def test_a_decoders_folder_loads_back_as_the_same_decoder(tmp_path: Path) -> None:
    decoder = strong()
    loaded = load_folder(save_folder(decoder, path=tmp_path / "model")).model
    assert isinstance(loaded, Decoder)
    assert loaded.shape == decoder.shape
    assert torch.equal(loaded(IDS), decoder(IDS))


def test_a_decoders_folder_needs_no_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(strong(), path=tmp_path / "model")
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    assert isinstance(load_folder(folder).model, Decoder)
    config = json.loads((folder / "config.json").read_text())
    del config["trireme_decoder"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"pip install 'trireme\[hf\]'"):
        load_folder(folder)


def test_large_models_are_written_in_several_files(tmp_path: Path, transformers: Any) -> None:
    decoder = strong()
    folder = save_folder(decoder, path=tmp_path / "model", shard_bytes=20_000)
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 2
    assert torch.equal(load_decoder(folder)(IDS), decoder(IDS))
    module = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    assert (module(IDS).logits - decoder(IDS)).abs().max() < FP32 * 10


def llama(transformers: Any, **changes: Any) -> Any:
    torch.manual_seed(1)
    settings = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings | changes)).eval()


@pytest.mark.parametrize("tied", [False, True])
def test_a_hugging_face_module_saves_and_loads_with_equal_logits(tmp_path: Path, transformers: Any, tied: bool) -> None:
    module = llama(transformers, tie_word_embeddings=tied)
    loaded = load_folder(save_folder(module, path=tmp_path / "model")).model
    assert type(loaded) is type(module)
    assert torch.equal(loaded(IDS).logits, module(IDS).logits)
    assert isinstance(load_decoder(tmp_path / "model"), Decoder)
    assert (load_decoder(tmp_path / "model").eval()(IDS) - module(IDS).logits).abs().max() < FP32


def test_other_families_load_as_transformers_modules(tmp_path: Path, transformers: Any) -> None:
    config = transformers.GPT2Config(vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4)
    module = transformers.GPT2LMHeadModel(config).eval()
    loaded = load_folder(save_folder(module, path=tmp_path / "gpt2")).model
    assert torch.equal(loaded(IDS).logits, module(IDS).logits)
    with pytest.raises(ModelError, match="gpt2"):
        load_decoder(tmp_path / "gpt2")


def test_a_scaled_rotary_model_is_not_taken_for_a_plain_one(tmp_path: Path, transformers: Any) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
    module = llama(transformers, rope_parameters=scaling)
    folder = save_folder(module, path=tmp_path / "scaled")
    with pytest.raises(ModelError, match="linear"):
        load_decoder(folder)


def damaged(tmp_path: Path, transformers: Any, change: str) -> Path:
    folder: Path = save_folder(llama(transformers), path=tmp_path / change)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.mlp.up_proj.weight"
    if change == "missing":
        del tensors[name]
    elif change == "unexpected":
        tensors["model.layers.7.mlp.up_proj.weight"] = tensors[name].clone()
    elif change == "mis-shaped":
        tensors[name] = tensors[name][:24].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    if change == "truncated":
        os.truncate(file, file.stat().st_size // 2)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", r"missing.*layers\.1\.mlp\.up_proj"),
        ("unexpected", r"unexpected.*layers\.7\.mlp\.up_proj"),
        ("mis-shaped", r"layers\.1\.mlp\.up_proj.*\[24, 32\].*\[48, 32\]"),
        ("truncated", "can't be read"),
    ],
)
@pytest.mark.parametrize("reader", [load_folder, load_decoder])
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, transformers: Any, change: str, message: str, reader: Any
) -> None:
    with pytest.raises(ModelError, match=message):
        reader(damaged(tmp_path, transformers, change))


def test_what_is_no_model_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a folder"):
        load_folder(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="can't be used"):
        load_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-family"}))
    with pytest.raises(ModelError, match="can't be used"):
        load_folder(tmp_path)


def test_ckp_27_a_tensor_left_sharded_is_not_saved(tmp_path: Path, transformers: Any) -> None:
    decoder = strong()
    decoder.embed_tokens.weight = nn.Parameter(decoder.embed_tokens.weight.detach()[:49].clone())
    module = llama(transformers)
    module.model.embed_tokens.weight = nn.Parameter(module.model.embed_tokens.weight.detach()[:49].clone())
    for broken in (decoder, module):
        with pytest.raises(ModelError, match=r"embed_tokens\.weight.*\[49, 32\].*\[97, 32\]"):
            save_folder(broken, path=tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_ckp_26_a_tied_model_reads_a_folder_that_repeats_its_head(tmp_path: Path) -> None:
    decoder = strong(replace(SHAPE, tie_embeddings=True))
    folder = save_folder(decoder, path=tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(load_decoder(folder)(IDS), decoder(IDS))


def test_a_folder_in_use_is_kept_unless_told_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "mine.txt").write_text("precious")
    with pytest.raises(ModelError, match="not empty"):
        save_folder(strong(), path=folder)
    assert (folder / "mine.txt").read_text() == "precious"
    save_folder(strong(), path=folder, overwrite=True)
    assert not (folder / "mine.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_failing_write_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(strong(), path=tmp_path / "model")

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trireme.models.save.write_tensors", fail)
    with pytest.raises(ModelError, match="No space left"):
        save_folder(strong(), path=folder, overwrite=True)
    assert isinstance(load_folder(folder).model, Decoder)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_the_tokenizer_travels_with_the_model(tmp_path: Path, transformers: Any) -> None:
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    added = [{"id": number, "content": token, "special": True} for number, token in ((0, "<pad>"), (2, "</s>"))]
    (tokenizer / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (tokenizer / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "</s>"}, "pad_token": "<pad>"})
    )
    folder = save_folder(strong(), path=tmp_path / "model", tokenizer_folder=tokenizer)
    loaded = load_folder(folder)
    assert loaded.tokenizer_folder == folder
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (None, 2, 0)
    assert transformers.GenerationConfig.from_pretrained(folder).eos_token_id == 2


def test_a_module_of_ones_own_has_no_such_form(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Linear"):
        save_folder(nn.Linear(2, 2), path=tmp_path / "model")


def test_weights_load_all_or_nothing(tmp_path: Path) -> None:
    source, target = strong(), build_decoder(SHAPE, seed=9)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    tensors = dict(source.state_dict())
    del tensors["norm.weight"]
    with pytest.raises(ModelError, match=r"missing norm\.weight"):
        load_weights(target, tensors)
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())
    load_weights(target, source.state_dict())
    assert torch.equal(target.eval()(IDS), source(IDS))
    other = build_decoder(SHAPE, seed=9).bfloat16()
    load_folder_weights(other, save_folder(source, path=tmp_path / "model"))
    assert other.norm.weight.dtype == torch.bfloat16


def test_a_tie_is_complete_with_one_of_its_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 3, bias=False)
            self.second = nn.Linear(2, 3, bias=False)
            self.second.weight = self.first.weight

    module = Tied()
    load_weights(module, {"second.weight": torch.ones(3, 2)})
    assert module.first.weight.eq(1).all()
