"""OPT of transformers: learned positions with an offset, biases everywhere, the head tied to the embedding."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.OPTConfig(
        vocab_size=97,
        hidden_size=32,
        ffn_dim=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        word_embed_proj_dim=32,
        dropout=0.0,
        init_std=0.2,
    )
    return transformers.OPTForCausalLM(config)
