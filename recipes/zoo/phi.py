"""Phi of transformers: attention and feed-forward side by side, rotary on a part of each head."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.PhiConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
    )
    return transformers.PhiForCausalLM(config)
