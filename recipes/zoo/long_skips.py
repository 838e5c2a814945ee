"""Skips across layers: each block of the second half also reads what its mirror image in the first half gave."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Causal attention and a feed-forward layer on a residual stream."""

    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.up, self.down = nn.Linear(d_model, 2 * d_model), nn.Linear(2 * d_model, d_model)

    def forward(self, x):
        B, T, D = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Skips(nn.Module):
    def __init__(self, vocab_size=97, d_model=32, num_heads=4, half=2) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.down = nn.ModuleList([Block(d_model, num_heads) for _ in range(half)])
        self.up = nn.ModuleList([Block(d_model, num_heads) for _ in range(half)])
        self.mix = nn.ModuleList([nn.Linear(2 * d_model, d_model) for _ in range(half)])
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, tokens):
        x, kept = self.embed(tokens), []
        for block in self.down:
            x = block(x)
            kept.append(x)
        for block, mix in zip(self.up, self.mix, strict=True):
            x = block(mix(torch.cat([x, kept.pop()], dim=-1)))
        return self.head(x)


def build() -> nn.Module:
    return Skips()
