"""Calling modules we don't know, and measuring whether they keep packed documents apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from trireme.errors import ModelError
from trireme.graph import DecoderShape
from trireme.models import build_decoder, call_model, check_isolation, describe_model

VOCAB = 50
BATCH = {
    "input_ids": torch.arange(12).view(2, 6),
    "position_ids": torch.arange(6).repeat(2, 1),
    "document_ids": torch.zeros(2, 6, dtype=torch.int64),
    "labels": torch.zeros(2, 6, dtype=torch.int64),
}


class Recurrent(nn.Module):
    """A GRU that accepts document ids and can't honour them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16)
        self.gru = nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, VOCAB)

    def forward(self, input_ids: Tensor, document_ids: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.gru(self.embed(input_ids))[0])
        return logits


class Convolution(nn.Module):
    """Causal convolution with an output that begins silent: a leak is only visible once it speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 16)
        self.conv = nn.Conv1d(16, 16, 3)
        self.out = nn.Linear(16, 16)
        self.head = nn.Linear(16, VOCAB)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        mixed = self.conv(nn.functional.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        logits: Tensor = self.head(x + self.out(torch.tanh(mixed)))
        return logits


class Bigram(nn.Module):
    """Each token alone: nothing can leak."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.table(tokens)
        return logits


def tiny_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def test_a_module_gets_what_its_forward_takes_and_nothing_else() -> None:
    seen: dict[str, object] = {}

    class Some(nn.Module):
        def forward(self, input_ids: Tensor, *, position_ids: Tensor | None = None) -> Any:
            seen.update(position_ids=position_ids)
            return SimpleNamespace(logits=torch.zeros(*input_ids.shape, VOCAB))

    assert call_model(Some(), BATCH).shape == (2, 6, VOCAB)
    assert seen["position_ids"] is BATCH["position_ids"]
    assert call_model(Bigram(), BATCH).shape == (2, 6, VOCAB)


@pytest.mark.parametrize("returned", [torch.zeros(2, 6), {"loss": 1}, None, torch.zeros(6, 2, VOCAB)])
def test_something_else_than_logits_is_named(returned: object) -> None:
    class Wrong(nn.Module):
        def forward(self, input_ids: Tensor) -> object:
            return returned

    with pytest.raises(ModelError, match="Wrong"):
        call_model(Wrong(), BATCH)


def test_the_reference_decoder_isolates() -> None:
    shape = DecoderShape(
        vocab_size=VOCAB, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=48, max_seq_len=64
    )
    decoder = build_decoder(shape, seed=1)
    before = {name: value.clone() for name, value in decoder.state_dict().items()}
    assert check_isolation(decoder.train(), vocab_size=VOCAB) < 1e-5
    assert decoder.training
    assert all(torch.equal(value, before[name]) for name, value in decoder.state_dict().items())
    assert check_isolation(decoder.bfloat16(), vocab_size=VOCAB) < 0.1


def test_a_hugging_face_module_isolates_by_its_positions() -> None:
    assert check_isolation(tiny_llama(), vocab_size=VOCAB) < 1e-5


@pytest.mark.parametrize(("kind", "takes"), [(Recurrent, "document_ids"), (Convolution, "neither")])
def test_dat_12_a_recurrent_or_convolutional_module_fails_by_measurement(kind: type[nn.Module], takes: str) -> None:
    module = kind()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(ModelError, match=rf"(?s){kind.__name__}.*{takes}.*data\.packing: none"):
        check_isolation(module, vocab_size=VOCAB)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_module_without_memory_isolates() -> None:
    assert check_isolation(Bigram(), vocab_size=VOCAB) == 0.0


def test_a_module_that_gives_nan_does_not_pass() -> None:
    module = Bigram()
    module.table.weight.data.fill_(torch.nan)
    with pytest.raises(ModelError):
        check_isolation(module, vocab_size=VOCAB)


def test_a_foreign_modules_costs_are_its_matrices() -> None:
    module = Recurrent()
    summary = describe_model(module, seq_len=8)
    matrices = 2 * 3 * 16 * 16 + 16 * VOCAB
    assert summary.num_params == sum(parameter.numel() for parameter in module.parameters())
    assert summary.flops_per_token == 6 * matrices
    assert sum(summary.groups.values()) == summary.num_params
    module.embed.weight.requires_grad_(False)
    assert describe_model(module, seq_len=8).num_trainable == summary.num_params - VOCAB * 16


def test_a_tied_head_counts_as_a_product_and_once_as_parameters() -> None:
    module = Recurrent()
    module.head.weight = module.embed.weight
    summary = describe_model(module, seq_len=8)
    assert summary.flops_per_token == 6 * (2 * 3 * 16 * 16 + 16 * VOCAB)
    assert summary.groups["embedding"] == 16 * VOCAB
    assert sum(summary.groups.values()) == summary.num_params


def test_the_decoders_summary_is_exact() -> None:
    shape = DecoderShape(
        vocab_size=VOCAB, num_layers=2, d_model=32, num_heads=4, num_kv_heads=2, d_ffn=48, max_seq_len=64
    )
    summary = describe_model(build_decoder(shape, seed=1), seq_len=16)
    assert sum(summary.groups.values()) == summary.num_params
    assert summary.flops_per_token == 6 * (2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48) + VOCAB * 32 + 2 * 16 * 32)
