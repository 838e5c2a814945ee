"""A decoder whose every layer reads the padding mask that the batch brings."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))
        self.out = nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model)

    def forward(self, x, seen):
        B, T, D = x.shape
        y = self.norm1(x)
        q, k, v = (layer(y).view(B, T, self.num_heads, -1).transpose(1, 2) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Padded(nn.Module):
    def __init__(self, vocab_size=97, d_model=32, num_heads=4, num_layers=4) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(64, d_model)
        self.blocks = nn.ModuleList([Block(d_model, num_heads) for _ in range(num_layers)])
        self.norm, self.head = nn.LayerNorm(d_model), nn.Linear(d_model, vocab_size, bias=False)

    def forward(self, tokens, attention_mask):
        length = tokens.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        seen = causal & attention_mask[:, None, None, :].bool()
        places = (attention_mask.cumsum(-1) - 1).clamp_min(0)
        x = self.embed(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x, seen)
        return self.head(self.norm(x))


def build() -> nn.Module:
    return Padded()


def batch(seed: int, seqs: int, seq_len: int) -> dict[str, torch.Tensor]:
    """Rows with a hidden stretch of unequal length behind the first word."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(97, (seqs, seq_len + 1), generator=generator)
    real = torch.ones(seqs, seq_len, dtype=torch.long)
    for row in range(seqs):
        hidden = int(torch.randint(1, seq_len // 2, (), generator=generator))
        real[row, 1 : 1 + hidden] = 0
    labels = tokens[:, 1:].masked_fill(real == 0, -100)
    return {"tokens": tokens[:, :-1].contiguous(), "attention_mask": real, "labels": labels}


def loss(outputs, batch):
    labels = batch["labels"]
    return F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="sum"), int((labels >= 0).sum())
