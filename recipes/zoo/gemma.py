"""Gemma of transformers: one key head for all, scaled embeddings, the head tied to the embedding."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.GemmaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_key_value_heads=1,
        head_dim=16,
    )
    return transformers.GemmaForCausalLM(config)
