"""What a decoder's shape says it costs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.config import ModelSection
from trireme.errors import ModelError
from trireme.graph import (
    PRESETS,
    DecoderShape,
    count_matmul_params,
    count_params,
    find_preset,
    flops_per_token,
    resolve_shape,
)
from trireme.models import meta_decoder

PUBLISHED_PARAMS = {
    "llama-1b": 1_235_814_400,
    "llama-3b": 3_212_749_824,
    "llama-7b": 6_738_415_616,
    "llama-8b": 8_030_261_248,
    "llama-13b": 13_015_864_320,
    "llama-30b": 32_528_943_616,
    "llama-65b": 65_285_660_672,
    "llama-70b": 70_553_706_496,
    "llama-405b": 405_853_388_800,
}
"""Elements in the released weights of the models these presets copy."""


@pytest.mark.parametrize("name", PRESETS)
def test_counts_equal_those_of_the_built_module(name: str) -> None:
    shape = PRESETS[name]
    decoder = meta_decoder(replace(shape, num_layers=min(shape.num_layers, 3)))
    counts = count_params(decoder.shape)
    assert counts.total == sum(parameter.numel() for parameter in decoder.parameters())
    named = dict(decoder.named_parameters())
    assert counts.attention == sum(value.numel() for key, value in named.items() if "self_attn" in key)
    assert counts.feed_forward == sum(value.numel() for key, value in named.items() if "mlp" in key)
    assert counts.norms == sum(value.numel() for value in named.values() if value.ndim == 1)


@pytest.mark.parametrize("name", PUBLISHED_PARAMS)
def test_real_llamas_have_their_published_number_of_parameters(name: str) -> None:
    assert count_params(PRESETS[name]).total == PUBLISHED_PARAMS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_name_says_the_size_to_a_tenth(name: str) -> None:
    number, unit = float(name[6:-1]), {"m": 1e6, "b": 1e9}[name[-1]]
    total = count_params(PRESETS[name]).total
    assert abs(total / (number * unit) - 1) < (0.25 if name == "llama-1b" else 0.1)


def test_flops_follow_the_written_formula() -> None:
    shape = PRESETS["llama-19m"]
    per_layer = 2 * 384 * 8 * 48 + 2 * 384 * 4 * 48 + 3 * 384 * 1024
    assert count_matmul_params(shape) == 8 * per_layer + 8192 * 384
    causal, full = (flops_per_token(shape, seq_len=256, causal=causal) for causal in (True, False))
    assert causal.value_flops == 6 * (8 * per_layer + 8192 * 384) + 6 * 8 * 256 * 384
    assert full.value_flops - causal.value_flops == 6 * 8 * 256 * 384
    assert "causal" in causal.formula
    assert "full" in full.formula


def test_tying_removes_the_head_and_keeps_its_flops() -> None:
    untied = PRESETS["llama-19m"]
    tied = replace(untied, tie_embeddings=True)
    assert count_params(untied).total - count_params(tied).total == 8192 * 384
    assert flops_per_token(tied, seq_len=8) == flops_per_token(untied, seq_len=8)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ModelError, match="llama-19m"):
        find_preset("lama-19m")
    with pytest.raises(ModelError, match="llama-405b"):
        find_preset("gigantic")
    assert find_preset("llama-33b") is PRESETS["llama-30b"]


def test_the_vocabulary_follows_the_tokenizer_and_says_so() -> None:
    said: list[str] = []
    shape = resolve_shape(ModelSection(name="llama-19m"), vocab_size=4100, seq_len=128, notice=said.append)
    assert shape.vocab_size == 4160
    assert "4160" in said[0]
    assert "4100" in said[0]


def test_a_vocabulary_that_is_a_multiple_is_taken_in_silence() -> None:
    said: list[str] = []
    shape = resolve_shape(ModelSection(name="llama-19m"), vocab_size=4096, seq_len=128, notice=said.append)
    assert (shape.vocab_size, said) == (4096, [])


def test_a_vocabulary_below_the_tokenizers_is_refused() -> None:
    with pytest.raises(ModelError, match=r"512.*4096"):
        resolve_shape(ModelSection(name="llama-19m", vocab_size=512), vocab_size=4096, seq_len=128)


def test_small_sizes_take_the_context_of_the_data() -> None:
    assert resolve_shape(ModelSection(name="llama-1m"), vocab_size=64, seq_len=4096).max_seq_len == 4096
    assert resolve_shape(ModelSection(name="llama-8b"), vocab_size=64, seq_len=4096).max_seq_len == 8192


def test_sequences_longer_than_the_model_name_both_keys() -> None:
    with pytest.raises(ModelError, match=r"data\.seq_len=512.*model\.max_seq_len=256"):
        resolve_shape(ModelSection(name="llama-1m", max_seq_len=256), vocab_size=64, seq_len=512)
    with pytest.raises(ModelError, match=r"data\.seq_len=10000.*8192"):
        resolve_shape(ModelSection(name="llama-8b"), vocab_size=64, seq_len=10000)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 7}, r"num_heads=7.*nearest.*num_heads=(6|8)"),
        ({"num_kv_heads": 3}, r"num_kv_heads=3.*num_kv_heads=(2|4)"),
        ({"d_model": 120, "num_heads": 8, "num_kv_heads": 8}, r"width 15"),
    ],
)
def test_heads_that_do_not_divide_name_the_nearest_that_do(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        resolve_shape(ModelSection(name="llama-19m", **changes), vocab_size=64, seq_len=16)


@pytest.mark.parametrize(
    "section",
    [
        {},
        {"name": "llama-1m", "path": "x"},
        {"factory": "a:b", "num_layers": 2},
        {"name": "llama-1m", "factory_args": {"a": 1}},
        {"path": "x", "vocab_size": 100},
    ],
)
def test_a_section_that_contradicts_itself_is_refused(section: dict[str, object]) -> None:
    with pytest.raises(ModelError):
        resolve_shape(ModelSection(**section), vocab_size=64, seq_len=16)  # type: ignore[arg-type]


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 4),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 3),
    half_width=st.integers(1, 8),
    ffn=st.integers(1, 40),
    vocab=st.integers(2, 50),
    tied=st.booleans(),
)
def test_counts_equal_the_module_for_any_shape(
    layers: int, groups: int, per_group: int, half_width: int, ffn: int, vocab: int, tied: bool
) -> None:
    shape = DecoderShape(
        vocab_size=vocab,
        num_layers=layers,
        d_model=groups * per_group * half_width * 2,
        num_heads=groups * per_group,
        num_kv_heads=groups,
        d_ffn=ffn,
        max_seq_len=8,
        tie_embeddings=tied,
    )
    assert count_params(shape).total == sum(parameter.numel() for parameter in meta_decoder(shape).parameters())


def test_listing_models_does_not_import_torch() -> None:
    code = "import sys, trireme.cli.models, trireme.graph; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
