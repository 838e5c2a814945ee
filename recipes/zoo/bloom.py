"""BLOOM of transformers: a bias by head and distance (ALiBi), a norm on the embedding, q, k and v interleaved."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.BloomConfig(
        vocab_size=97,
        hidden_size=32,
        n_layer=4,
        n_head=4,
        initializer_range=0.2,
    )
    return transformers.BloomForCausalLM(config)
