"""Generation from any causal module."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.graph import DecoderShape
from trireme.models import build_decoder, generate
from trireme.models.generate import _Choice, _open_reader, _WholeReader

SHAPE = DecoderShape(vocab_size=60, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=48, max_seq_len=24)
DRAWS = 4000
SHARE = 0.03
"""Four standard errors of a share of 4,000 draws."""


class Counting(nn.Module):
    """Says the next number, certainly."""

    def __init__(self, size: int = 10) -> None:
        super().__init__()
        self.size = size

    def forward(self, input_ids: Tensor) -> Tensor:
        return 50.0 * nn.functional.one_hot((input_ids + 1) % self.size, self.size).float()


def sharpened() -> nn.Module:
    decoder = build_decoder(SHAPE, seed=3)
    for parameter in decoder.parameters():
        parameter.data.mul_(3)
    return decoder


def test_greedy_decoding_with_the_cache_equals_reading_everything_again() -> None:
    decoder = sharpened()
    prompt = [5, 9, 2]
    got = list(generate(decoder, prompt, max_new_tokens=15, temperature=0))
    seen = list(prompt)
    for _ in range(15):
        seen.append(int(decoder(torch.tensor([seen]))[0, -1].argmax()))
    assert got == seen[3:]
    assert len(set(got)) > 3


def test_cached_logits_equal_those_without_a_cache() -> None:
    decoder = sharpened()
    cached, whole = _open_reader(decoder, max_tokens=24), _WholeReader(decoder)
    for new in ([1, 2, 3], [7], [9], [11]):
        assert torch.allclose(cached.read(new), whole.read(new), atol=1e-5)


def test_a_hugging_face_module_generates_with_its_cache() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    module = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=24,
        )
    )
    module.apply(
        lambda part: [value.data.mul_(4) for value in part.parameters(recurse=False) if value.ndim > 1] and None
    )
    reader, whole = _open_reader(module, max_tokens=24), _WholeReader(module)
    assert not isinstance(reader, _WholeReader)
    module.eval()
    with torch.no_grad():
        for new in ([1, 2, 3], [7], [9]):
            assert torch.allclose(reader.read(new), whole.read(new), atol=1e-5)
    assert len(list(generate(module, [1, 2], max_new_tokens=5))) == 5


def test_any_causal_module_generates_and_a_stop_id_ends_it() -> None:
    assert list(generate(Counting(), [3], max_new_tokens=4)) == [4, 5, 6, 7]
    assert list(generate(Counting(), [3], max_new_tokens=40, stop_ids=[9])) == [4, 5, 6, 7, 8]


def test_the_seed_decides_the_draws() -> None:
    decoder = sharpened()
    first, second, other = (
        list(generate(decoder, [1], max_new_tokens=20, temperature=1.0, seed=seed)) for seed in (4, 4, 5)
    )
    assert first == second
    assert first != other


def test_it_ends_where_the_context_is_full() -> None:
    assert len(list(generate(sharpened(), [1] * 20, max_new_tokens=100))) == 4


def test_a_prompt_that_fills_the_context_is_refused_at_once() -> None:
    with pytest.raises(ModelError, match=r"24 tokens.*context of 24.*23"):
        generate(sharpened(), [1] * 24, max_new_tokens=1)
    with pytest.raises(ModelError, match="no token"):
        generate(sharpened(), [], max_new_tokens=1)


@pytest.mark.parametrize("settings", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -2}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ModelError, match=next(iter(settings))):
        generate(Counting(), [1], max_new_tokens=1, **settings)  # type: ignore[arg-type]


def draw(**settings: float) -> Counter[int]:
    choice = _Choice(**{"temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 1, **settings})  # type: ignore[arg-type]
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log()
    return Counter(choice(logits) for _ in range(DRAWS))


def test_draws_follow_the_probabilities() -> None:
    got = draw()
    for token, share in enumerate([0.1, 0.4, 0.2, 0.3]):
        assert abs(got[token] / DRAWS - share) < SHARE


def test_top_k_and_top_p_keep_the_likeliest() -> None:
    assert set(draw(top_k=2)) == {1, 3}
    assert set(draw(top_p=0.41)) == {1, 3}
    assert set(draw(top_p=0.4)) == {1}
    assert set(draw(top_p=0.0001)) == {1}
    assert abs(draw(top_k=2)[1] / DRAWS - 4 / 7) < SHARE


def test_temperature_sharpens() -> None:
    assert abs(draw(temperature=0.5)[1] / DRAWS - 0.16 / 0.30) < SHARE


def test_ckp_25_padding_of_the_vocabulary_is_never_given() -> None:
    assert set(generate(Counting(8), [6], max_new_tokens=30, temperature=1.0, vocab_size=7)) <= set(range(7))


def test_training_mode_is_put_back_between_tokens() -> None:
    decoder = sharpened().train()
    for _ in generate(decoder, [1], max_new_tokens=3):
        assert decoder.training
        assert torch.is_grad_enabled()
