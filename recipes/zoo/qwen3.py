"""Qwen3 of transformers: a norm on the queries and keys of each head, the head tied to the embedding."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.Qwen3Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_key_value_heads=2,
        head_dim=16,
        tie_word_embeddings=True,
    )
    return transformers.Qwen3ForCausalLM(config)
