"""GPT-2 of transformers: weights stored transposed, q, k and v in one matrix, the head tied to the embedding."""

import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=97,
        n_embd=32,
        n_layer=4,
        n_head=4,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        initializer_range=0.2,
    )
    return transformers.GPT2LMHeadModel(config)
