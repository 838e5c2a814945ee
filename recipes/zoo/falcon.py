"""Falcon of transformers: one key head for all in the same matrix as the queries, feed-forward beside attention."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.FalconConfig(
        vocab_size=97,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        initializer_range=0.2,
    )
    return transformers.FalconForCausalLM(config)
