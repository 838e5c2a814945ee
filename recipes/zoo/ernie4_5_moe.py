"""ERNIE 4.5 MoE of transformers: a dense layer, then experts with a correction bias and shared ones."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.Ernie4_5_MoeConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        num_key_value_heads=2,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=24,
        moe_layer_start_index=1,
        moe_num_shared_experts=1,
    )
    return transformers.Ernie4_5_MoeForCausalLM(config)
