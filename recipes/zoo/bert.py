"""BERT of transformers: attention in both directions, padded rows, words hidden at random to be guessed."""

import torch
import torch.nn.functional as F
import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=64,
        initializer_range=0.2,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.BertForMaskedLM(config)


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    """Rows of unequal length, padded at the end; about a quarter of the words is to be guessed."""
    generator = torch.Generator().manual_seed(seed)
    words = torch.randint(1, 97, (seqs, seq_len), generator=generator)
    lengths = torch.randint(seq_len // 2, seq_len + 1, (seqs, 1), generator=generator)
    real = torch.arange(seq_len) < lengths
    hidden = real & (torch.rand(seqs, seq_len, generator=generator) < 0.25)
    hidden[:, 0] = True
    return {
        "input_ids": words.masked_fill(hidden | ~real, 0),
        "attention_mask": real.long(),
        "words": words.masked_fill(~hidden, -100),
    }


def loss(outputs, batch):
    words = batch["words"]
    return F.cross_entropy(outputs.logits.flatten(0, 1), words.flatten(), reduction="sum"), int((words >= 0).sum())
