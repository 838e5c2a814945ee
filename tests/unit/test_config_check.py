"""What sections must agree on, and what is said when a value can have no effect."""

from __future__ import annotations

from typing import Any

import pytest

from trireme.config import load_config
from trireme.errors import ConfigError

COMPLETE: dict[str, Any] = {"model": "llama-19m", "data": {"sources": "a.txt"}, "train": {"max_steps": 100}}


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(None, overrides, base=COMPLETE)
    return str(caught.value)


def notices(*overrides: str) -> list[str]:
    return load_config(None, overrides, base=COMPLETE).notices


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["train.max_steps="], "give one of train.max_steps, train.max_tokens, train.epochs"),
        (["train.epochs=2"], "train.max_steps = 100, train.epochs = 2.0: exactly one may say how long to train"),
        (["train.microbatch_seqs=64"], "train.microbatch_seqs = 64 is more than train.global_batch_seqs = 32"),
        (["train.warmup_steps=1", "train.warmup_tokens=1"], "both say how long warm-up is"),
        (["train.warmup_steps=200"], "train.warmup_steps = 200 is longer than the run, which is 100"),
        (["model.name="], "give one of model.name (e.g. llama-19m), model.factory, model.path"),
        (["model.path=x"], "model.name = llama-19m, model.path = x: exactly one may say which model"),
        (["model.name=", "model.path=x", "model.d_model=64"], "model.d_model only changes a named size"),
        (
            ["model.name=", "model.factory=nothing"],
            "model.factory = nothing is neither package.module:function nor path/to/file.py:function",
        ),
        (["model.factory_args={a: 1}"], "model.factory_args needs model.factory"),
        (["model.num_heads=6", "model.num_kv_heads=4"], "must be a multiple of model.num_kv_heads = 4"),
        (["model.num_heads=6", "model.d_model=64"], "model.d_model = 64 must be a multiple of model.num_heads = 6"),
        (["model.num_heads=8", "model.d_model=56"], "gives heads of 7; rotary positions need an even width"),
        (["model.max_seq_len=128"], "data.seq_len = 512 is longer than model.max_seq_len = 128"),
        (["data.sources=[]"], "data.sources is empty"),
        (["layout=tp=2", "layout.pp=2"], "layout = tp=2 says the whole layout, and layout.pp say parts of it"),
    ],
)
def test_contradictions_are_refused_with_their_values(overrides: list[str], said: str) -> None:
    assert said in refusal(*overrides)


def test_a_contradiction_is_said_where_it_was_written() -> None:
    assert refusal("layout=tp=2", "layout.tp=2").startswith("command line: layout = tp=2")


@pytest.mark.parametrize(
    ("override", "because"),
    [
        ("train.decay_ratio=0.5", "train.schedule = cosine"),
        ("precision.init_loss_scale=8", "precision.policy = auto"),
        ("precision.loss_scale_growth_steps=8", "precision.policy = auto"),
        ("precision.fallback=fp32", "precision.policy = auto"),
    ],
)
def test_a_value_without_effect_is_said(override: str, because: str) -> None:
    key = override.partition("=")[0]
    assert notices(override) == [f"command line: {key} has no effect with {because}."]


def test_a_value_without_effect_under_another_is_said() -> None:
    assert "train.min_lr_ratio has no effect" in notices("train.schedule=constant", "train.min_lr_ratio=0.5")[0]
    assert "train.max_nonfinite has no effect" in notices("train.on_nonfinite=stop", "train.max_nonfinite=9")[0]
    assert "train.eval_seqs has no effect" in notices("data.eval_fraction=0", "train.eval_seqs=9")[0]
    assert "data.eval_fraction has no effect" in notices("data.eval_sources=b.txt", "data.eval_fraction=0.5")[0]
    assert "data.tokenizer_vocab_size has no effect" in notices("data.tokenizer=t", "data.tokenizer_vocab_size=999")[0]
    assert "observe.every_steps has no effect" in notices("observe.progress=off", "observe.every_steps=9")[0]
    assert notices("precision=fp16", "precision.init_loss_scale=8", "train.schedule=wsd", "train.decay_ratio=0.5") == []


def test_a_last_smaller_micro_batch_is_said() -> None:
    assert "the last micro-batch of a step has 2" in notices("train.microbatch_seqs=5")[0]
    assert notices("train.microbatch_seqs=8") == []


def test_looking_at_data_needs_sources_and_no_model() -> None:
    assert load_config(None, base={"data": {"sources": "a"}}, purpose="data").notices == []
    with pytest.raises(ConfigError, match=r"data\.sources is empty"):
        load_config(None, base={"model": "llama-19m"}, purpose="data")
