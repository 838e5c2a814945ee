"""ViT of transformers: a convolution cuts images into patches, one learned token stands for the class."""

import torch
import torch.nn.functional as F
import transformers
from torch import nn


def build() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=12,
        patch_size=4,
        num_channels=3,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_labels=7,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.2,
    )
    return transformers.ViTForImageClassification(config)


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    """Images of nine patches; ``seq_len`` has no meaning here."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(seqs, 3, 12, 12, generator=generator)
    return {"pixel_values": images, "classes": torch.randint(7, (seqs,), generator=generator)}


def loss(outputs, batch):
    return F.cross_entropy(outputs.logits, batch["classes"], reduction="sum"), len(batch["classes"])
