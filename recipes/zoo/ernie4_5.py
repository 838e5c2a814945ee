"""ERNIE 4.5 of transformers: grouped key heads, rotary pairs side by side, the head tied to the embedding."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.Ernie4_5Config(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_key_value_heads=2,
        head_dim=8,
    )
    return transformers.Ernie4_5ForCausalLM(config)
