"""The LargeLM that articles on hybrid parallelism show: an embedding, a Sequential of library blocks, a linear head."""

import torch
from torch import nn


class SimpleTransformer(nn.Module):
    def __init__(self, d_model: int, num_heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x):
        hidden = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device), 1)
        y = self.norm1(x)
        y, _ = self.attn(y, y, y, attn_mask=hidden, need_weights=False)
        x = x + y
        return x + self.ffn(self.norm2(x))


class LargeLM(nn.Module):
    def __init__(self, vocab_size=97, d_model=32, num_heads=4, num_layers=4) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.layers = nn.Sequential(*[SimpleTransformer(d_model, num_heads) for _ in range(num_layers)])
        self.head = nn.Linear(d_model, vocab_size)

    def forward(self, x):
        return self.head(self.layers(self.embed(x)))


def build() -> nn.Module:
    return LargeLM()
