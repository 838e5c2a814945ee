"""A model that draws everywhere: one dropout for all, blocks run at two depths, noise and left-out rows between them."""

import torch
import torch.nn.functional as F
from torch import nn

_VOCAB, _WIDTH, _DEPTH = 48, 16, 6


class Block(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.drop, self.up, self.down = drop, nn.Linear(_WIDTH, 32), nn.Linear(32, _WIDTH)

    def forward(self, x):
        inner = self.drop(F.gelu(self.up(x)))
        return x + F.dropout(self.drop(self.down(inner)), 0.1, self.training)


class Scattered(nn.Module):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.embed, self.head = nn.Embedding(_VOCAB, _WIDTH), nn.Linear(_WIDTH, _VOCAB)
        self.blocks = nn.ModuleList([Block(self.drop) for _ in range(4)])

    def forward(self, tokens):
        x = self.drop(self.embed(tokens))
        for depth in range(_DEPTH):
            kept = torch.rand(len(x), 1, 1) > 0.3
            if depth >= 2 or torch.rand(1).item() > 0.5:
                x = self.blocks[depth % len(self.blocks)](x) * kept + 0.1 * torch.randn_like(x)
        return self.head(F.dropout(self.drop(x), 0.3, self.training))


def build():
    return Scattered()
