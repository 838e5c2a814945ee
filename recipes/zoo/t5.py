"""T5 of transformers: an encoder and a decoder stack, relative positions from a table, padded sources."""

import torch
import torch.nn.functional as F
import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=97,
        d_model=32,
        d_kv=8,
        d_ff=72,
        num_layers=4,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        initializer_factor=1.0,
    )
    return transformers.T5ForConditionalGeneration(config)


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    """Padded sources, and targets of half their length that end at unequal places."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(1, 97, (seqs, seq_len), generator=generator)
    real = torch.arange(seq_len) < torch.randint(seq_len // 2, seq_len + 1, (seqs, 1), generator=generator)
    length = seq_len // 2
    target = torch.randint(1, 97, (seqs, length), generator=generator)
    counted = torch.arange(length) < torch.randint(1, length + 1, (seqs, 1), generator=generator)
    return {
        "input_ids": source.masked_fill(~real, 0),
        "attention_mask": real.long(),
        "decoder_input_ids": F.pad(target[:, :-1], (1, 0)),
        "targets": target.masked_fill(~counted, -100),
    }


def loss(outputs, batch):
    targets = batch["targets"]
    return F.cross_entropy(outputs.logits.flatten(0, 1), targets.flatten(), reduction="sum"), int((targets >= 0).sum())
