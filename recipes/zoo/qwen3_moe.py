"""Qwen3-MoE of transformers: four experts in every second layer, norms on queries and keys."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.Qwen3MoeConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_key_value_heads=2,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        decoder_sparse_step=2,
    )
    return transformers.Qwen3MoeForCausalLM(config)
