"""Dropout on the embedding and in every block; no attention, so each random number belongs to one position."""

import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        hidden = F.dropout(F.gelu(self.up(self.norm(x))), p=0.2, training=self.training)
        return x + self.drop(self.down(hidden))


class Dropped(nn.Module):
    def __init__(self, vocab_size=97, width=32, num_layers=4) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(vocab_size, width), nn.Dropout(0.1)
        self.blocks = nn.ModuleList([Block(width) for _ in range(num_layers)])
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        x = self.drop(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build() -> nn.Module:
    return Dropped()
