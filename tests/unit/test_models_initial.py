"""Initial weights: by counting, so any slice can be made alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trireme.graph import DecoderShape
from trireme.interpret import materialise
from trireme.interpret.counter import fill_normal, hash_index, normal, stream_key, uniform_bits
from trireme.models import build_decoder, initialise_parameter, meta_decoder

TINY = DecoderShape(vocab_size=97, num_layers=4, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=64, max_seq_len=64)
MOMENT = 0.01
"""Four standard errors of the moments of a million draws, about."""


def test_bits_are_those_of_splitmix64() -> None:
    # The generator's published sequence for seed 1234567: its state grows by the golden ratio a draw.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    got = [value & (1 << 64) - 1 for value in hash_index(torch.arange(1, 5), 1234567).tolist()]
    assert got == expected


def test_normal_numbers_are_normal() -> None:
    drawn = normal(torch.arange(1_000_000), stream_key(3, "x")).double()
    assert abs(drawn.mean()) < MOMENT
    assert abs(drawn.var() - 1) < MOMENT
    assert abs(drawn.pow(3).mean()) < 3 * MOMENT
    assert abs(drawn.pow(4).mean() - 3) < 10 * MOMENT
    for z in (-2.0, -0.5, 0.0, 1.0, 3.0):
        assert abs(float((drawn < z).double().mean()) - 0.5 * (1 + math.erf(z / math.sqrt(2)))) < MOMENT / 2
    assert abs(float((drawn[1:] * drawn[:-1]).mean())) < MOMENT


def test_normal_numbers_follow_box_and_muller() -> None:
    index, key = torch.arange(100_000), stream_key(5, "y")
    bits = hash_index(index, key)
    first = (((bits >> 40) & 0xFFFFFF).double() + 1) * 2.0**-24
    second = ((bits >> 16) & 0xFFFFFF).double() * 2.0**-24 - 0.5
    exact = (-2 * first.log()).sqrt() * torch.sin(2 * math.pi * second)
    assert (normal(index, key) - exact).abs().max() < 1e-5
    assert torch.equal(uniform_bits(index, key), (bits >> 40) & 0xFFFFFF)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), rank=st.integers(1, 3))
def test_a_slice_drawn_alone_equals_the_slice_of_the_whole(data: st.DataObject, rank: int) -> None:
    full = tuple(data.draw(st.integers(1, 40)) for _ in range(rank))
    start = tuple(data.draw(st.integers(0, size - 1)) for size in full)
    lengths = [data.draw(st.integers(1, size - first)) for size, first in zip(full, start, strict=True)]
    whole, part = torch.empty(full), torch.empty(lengths)
    fill_normal(whole, key=99, std=0.3)
    fill_normal(part, key=99, std=0.3, full_shape=full, start=start)
    window = tuple(slice(first, first + length) for first, length in zip(start, lengths, strict=True))
    assert torch.equal(part, whole[window])


def test_a_large_slice_equals_the_whole_across_pieces_and_layouts() -> None:
    whole = torch.empty(300, 1000)
    fill_normal(whole, key=1, std=1.0)
    part = torch.empty(150, 700)
    fill_normal(part, key=1, std=1.0, full_shape=whole.shape, start=(149, 300))
    assert torch.equal(part, whole[149:299, 300:])
    turned = torch.empty(1000, 300).T
    fill_normal(turned, key=1, std=1.0)
    assert torch.equal(turned, whole)


def test_any_shard_of_a_decoder_is_initialised_alone() -> None:
    decoder = build_decoder(TINY, seed=1234)
    for name, parameter in meta_decoder(TINY).named_parameters():
        whole = decoder.get_parameter(name)
        rows = parameter.shape[0] // 2
        shard = torch.empty(rows, *parameter.shape[1:])
        start = (rows, *[0] * (parameter.ndim - 1))
        initialise_parameter(
            shard, name=name, seed=1234, num_layers=TINY.num_layers, full_shape=parameter.shape, start=start
        )
        assert torch.equal(shard, whole[rows : 2 * rows]), name


def test_initial_weights_depend_on_the_seed_and_the_name_only() -> None:
    torch.manual_seed(1)
    first = build_decoder(TINY, seed=5).state_dict()
    torch.manual_seed(2)
    second, other = build_decoder(TINY, seed=5).state_dict(), build_decoder(TINY, seed=6).state_dict()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name])
        assert "norm" in name or not torch.equal(tensor, other[name])
    assert not torch.equal(first["layers.0.mlp.up_proj.weight"], first["layers.1.mlp.up_proj.weight"])


@pytest.mark.parametrize(
    ("name", "std"),
    [("embed_tokens", 0.02), ("layers.2.self_attn.q_proj", 0.02), ("layers.2.mlp.down_proj", 0.02 / math.sqrt(8))],
)
def test_standard_deviations_follow_the_rule(name: str, std: float) -> None:
    weight = build_decoder(TINY, seed=1).get_parameter(f"{name}.weight").detach()
    assert abs(float(weight.std()) / std - 1) < 0.06


def test_norms_begin_at_one() -> None:
    decoder = build_decoder(TINY, seed=1)
    assert all(bool((value == 1).all()) for name, value in decoder.named_parameters() if "norm" in name)


def test_a_decoder_without_storage_is_filled_as_it_is_built() -> None:
    told: list[str] = []
    filled = materialise(meta_decoder(TINY), seed=7, notice=told.append)
    for name, parameter in build_decoder(TINY, seed=7).named_parameters():
        assert torch.equal(filled.get_parameter(name), parameter), name
    assert not told
